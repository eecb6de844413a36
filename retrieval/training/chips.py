"""What accelerators can do, as their makers publish it.

TPUs: cloud.google.com/tpu/docs, "System architecture", a page per version.
GPUs: NVIDIA's data sheets, rates without sparsity, of the SXM boards where there are several.
"""

import dataclasses

from retrieval.training.sharding import Device


@dataclasses.dataclass(frozen=True)
class Chip:
    """One chip; JAX sees each of its `cores` as a device.

    Attributes:
      name: as in the name of a topology, such as v3 in 'v3:4x8'.
      kind: `device_kind` of JAX's devices.
      peak_flops: bfloat16 operations per second.
      memory: bytes of HBM.
      clock: cycles of a core per second; None where libtpu's estimate is not read.
    """

    name: str
    kind: str
    cores: int
    peak_flops: float
    memory: int
    clock: float | None = None

    @property
    def is_tpu(self) -> bool:
        """Whether a topology can be made of it."""
        return self.kind.startswith("TPU")


_GIB = 2**30

CHIPS = (
    Chip("v2", "TPU v2", 2, 46e12, 16 * _GIB, 700e6),
    Chip("v3", "TPU v3", 2, 123e12, 32 * _GIB, 940e6),
    Chip("v4", "TPU v4", 1, 275e12, 32 * _GIB, 1050e6),
    Chip("v5e", "TPU v5 lite", 1, 197e12, 16 * _GIB, 1500e6),
    Chip("v5p", "TPU v5", 1, 459e12, 95 * _GIB),
    Chip("v6e", "TPU v6 lite", 1, 918e12, 32 * _GIB),
    Chip("L4", "NVIDIA L4", 1, 121e12, 24 * _GIB),
    Chip("A100-40", "NVIDIA A100-SXM4-40GB", 1, 312e12, 40 * _GIB),
    Chip("A100-80", "NVIDIA A100-SXM4-80GB", 1, 312e12, 80 * _GIB),
    Chip("H100", "NVIDIA H100 80GB HBM3", 1, 989e12, 80 * _GIB),
    Chip("H200", "NVIDIA H200", 1, 989e12, 141 * 10**9),
)


def of(device: Device) -> Chip | None:
    """The chip of a device; None where it is not in the table, such as a CPU."""
    return next((chip for chip in CHIPS if chip.kind == device.device_kind), None)
