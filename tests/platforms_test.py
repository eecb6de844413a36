"""What is said of platforms that do not repeat their bits, or cannot be started."""

import jax
import jax.numpy as jnp
import pytest

from retrieval.errors import UserError
from retrieval.runtime import platforms


@pytest.mark.parametrize(
    ("platform", "flags", "told"),
    [
        ("cpu", "", False),
        ("gpu", "--xla_gpu_enable_triton_gemm=false --xla_gpu_deterministic_ops=false", True),
        ("gpu", "--xla_gpu_enable_triton_gemm=false --xla_gpu_deterministic_ops=true", False),
    ],
)
def test_the_log_says_that_a_gpu_does_not_repeat_its_bits(platform, flags, told, monkeypatch, caplog):
    monkeypatch.setenv("XLA_FLAGS", flags)
    with caplog.at_level("INFO"):
        platforms.tell_of_bits(platform)
    assert ("with XLA_FLAGS=--xla_gpu_deterministic_ops=true it ends equal to the bit" in caplog.text) == told


def test_an_error_without_a_text_is_explained_where_no_device_can_be_started(monkeypatch):
    """As JAX raises it for JAX_PLATFORMS=cuda on a machine without a GPU, from any of its functions."""

    def no_device():
        raise AssertionError

    with pytest.raises(TypeError) as raised:
        jnp.ones(2) @ jnp.ones(3)
    assert platforms.explained(raised.value) is None
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setattr(jax, "devices", no_device)
    needed = r"^JAX cannot start what JAX_PLATFORMS=cuda names \(there is no such device, .*: set JAX_PLATFORMS=cpu"
    with pytest.raises(UserError, match=needed):
        platforms.check(None)
    assert str(platforms.explained(raised.value)).startswith("JAX cannot start what JAX_PLATFORMS=cuda names")
    assert platforms.explained(ValueError()) is None
