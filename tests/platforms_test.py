"""What is said of platforms that do not repeat their bits."""

import pytest

from retrieval.runtime import platforms


@pytest.mark.parametrize(
    ("platform", "flags", "told"),
    [
        ("cpu", "", False),
        ("tpu", "", False),
        ("gpu", "", True),
        ("gpu", "--xla_gpu_enable_triton_gemm=false --xla_gpu_deterministic_ops=false", True),
        ("gpu", "--xla_gpu_enable_triton_gemm=false --xla_gpu_deterministic_ops=true", False),
        ("gpu", "--xla_gpu_deterministic_ops", False),
    ],
)
def test_the_log_says_that_a_gpu_does_not_repeat_its_bits(platform, flags, told, monkeypatch, caplog):
    monkeypatch.setenv("XLA_FLAGS", flags)
    with caplog.at_level("INFO"):
        platforms.tell_of_bits(platform)
    assert ("with XLA_FLAGS=--xla_gpu_deterministic_ops=true it ends equal to the bit" in caplog.text) == told
