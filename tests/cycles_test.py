"""Cycles of a compiled step, from a program as libtpu writes it."""

from retrieval.training import cycles

PROGRAM = """HloModule jit_step

%product (p.1: f32[8,8]) -> f32[8,8] {
  %p.1 = f32[8,8]{1,0} parameter(0)
  %exp.1 = f32[8,8]{1,0} exponential(%p.1)
  ROOT %convolution.1 = f32[8,8]{1,0} convolution(%exp.1, %exp.1), dim_labels=bf_io->bf
}

%sum (p.2: f32[8,8]) -> f32[8,8] {
  %p.2 = f32[8,8]{1,0} parameter(0)
  ROOT %add.2 = f32[8,8]{1,0} add(%p.2, %p.2)
}

%body (state: (s32[], f32[8,8])) -> (s32[], f32[8,8]) {
  %state = (s32[], f32[8,8]{1,0}) parameter(0)
  %number = s32[] get-tuple-element(%state), index=0
  %x = f32[8,8]{1,0} get-tuple-element(%state), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%number, %one)
  %fusion.1 = f32[8,8]{1,0} fusion(%x), kind=kOutput, calls=%product, backend_config={"estimated_cycles":"100"}
  %copy.1 = f32[8,8]{0,1} copy(%fusion.1), backend_config={"estimated_cycles":"7"}
  ROOT %tuple.1 = (s32[], f32[8,8]{1,0}) tuple(%next, %copy.1)
}

%condition (state.1: (s32[], f32[8,8])) -> pred[] {
  %state.1 = (s32[], f32[8,8]{1,0}) parameter(0)
  %number.1 = s32[] get-tuple-element(%state.1), index=0
  %end = s32[] constant(12)
  ROOT %less = pred[] compare(%number.1, %end), direction=LT
}

ENTRY %main (x.1: f32[8,8]) -> f32[8,8] {
  %x.1 = f32[8,8]{1,0} parameter(0)
  %zero = s32[] constant(0)
  %tuple.2 = (s32[], f32[8,8]{1,0}) tuple(%zero, %x.1)
  %while.1 = (s32[], f32[8,8]{1,0}) while(%tuple.2), condition=%condition, body=%body
  %x.2 = f32[8,8]{1,0} get-tuple-element(%while.1), index=1
  %fusion.2 = f32[8,8]{1,0} fusion(%x.2), kind=kLoop, calls=%sum, backend_config={"estimated_cycles":"30"}
  ROOT %all-reduce.1 = f32[8,8]{1,0} all-reduce(%fusion.2), to_apply=%sum, backend_config={"estimated_cycles":"5"}
}
"""


def test_operations_of_a_loop_count_with_each_turn():
    counted = cycles.estimated(PROGRAM)
    assert counted == {"matrix products": 1200, "copies": 84, "all else": 30, "traffic between chips": 5}
    assert list(counted) == ["matrix products", "copies", "all else", "traffic between chips"]


def test_a_program_without_estimates_has_none():
    assert cycles.estimated(PROGRAM.replace("estimated_cycles", "other")) == {}


def test_kernels_without_an_estimate_are_counted_with_each_turn():
    kernel = '%kernel.1 = f32[8,8]{1,0} custom-call(%x), custom_call_target="tpu_custom_call"'
    program = PROGRAM.replace("  %copy.1 =", f"  {kernel}\n  %copy.1 =")
    assert cycles.kernels(program) == 12 and cycles.kernels(PROGRAM) == 0
    assert cycles.estimated(program) == cycles.estimated(PROGRAM)
