"""Platforms that do not repeat their bits or cannot be started, programs that are kept, and large pages of memory."""

import os
import platform
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from retrieval.common.errors import UserError
from retrieval.common.runtime import devices


@pytest.mark.parametrize(
    ("kind", "flags", "told"),
    [
        ("cpu", "", False),
        ("gpu", "--xla_gpu_enable_triton_gemm=false --xla_gpu_deterministic_ops=false", True),
        ("gpu", "--xla_gpu_enable_triton_gemm=false --xla_gpu_deterministic_ops=true", False),
    ],
)
def test_the_log_says_that_a_gpu_does_not_repeat_its_bits(kind, flags, told, monkeypatch, caplog):
    monkeypatch.setenv("XLA_FLAGS", flags)
    with caplog.at_level("INFO"):
        devices.tell_of_bits(kind)
    assert ("with XLA_FLAGS=--xla_gpu_deterministic_ops=true it ends equal to the bit" in caplog.text) == told


def test_an_error_without_a_text_is_explained_where_no_device_can_be_started(monkeypatch):
    """As JAX raises it for JAX_PLATFORMS=cuda on a machine without a GPU, from any of its functions."""

    def no_device():
        raise AssertionError

    with pytest.raises(TypeError) as raised:
        jnp.ones(2) @ jnp.ones(3)
    assert devices.explained(raised.value) is None
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setattr(jax, "devices", no_device)
    needed = r"^JAX cannot start what JAX_PLATFORMS=cuda names \(there is no such device, .*: set JAX_PLATFORMS=cpu"
    with pytest.raises(UserError, match=needed):
        devices.check(None)
    assert str(devices.explained(raised.value)).startswith("JAX cannot start what JAX_PLATFORMS=cuda names")
    assert devices.explained(ValueError()) is None


@pytest.mark.parametrize(
    ("backend", "environment", "kept"),
    [("gpu", None, True), ("tpu", None, True), ("cpu", None, True), ("gpu", "/elsewhere", False), ("cpu", "", False)],
)
def test_programs_are_kept(monkeypatch, tmp_path, backend, environment, kept):
    """Where the user wants them; those of each kind of CPU in a folder of their own."""
    changed = {}
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(jax.config, "update", changed.__setitem__)
    monkeypatch.setattr(type(jax.config), "jax_compilation_cache_dir", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    if environment is not None:
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", environment)
    devices.keep_programs.__wrapped__()
    place = tmp_path / "retrieval" / "programs" / (devices._processor() if backend == "cpu" else "")
    assert changed.get("jax_compilation_cache_dir") == (str(place) if kept else None)
    assert bool(changed.get("jax_compilation_cache_max_size")) == kept


PROGRAM = """
import os, sys
print("begins", os.getpid(), sys.argv[1:], os.environ.get("GLIBC_TUNABLES"), flush=True)
from retrieval.common.runtime import devices
devices.restart_with_large_pages()
print("goes on", os.getpid(), input(), flush=True)
"""

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")


def ran(*words, **environment):
    """The lines that the program prints."""
    inherited = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    command = [sys.executable, "-c", PROGRAM, *words]
    result = subprocess.run(
        command, input="what it is asked\n", env=inherited | environment, text=True, capture_output=True, check=True
    )
    return [line.split(maxsplit=2) for line in result.stdout.splitlines()]


@glibc
def test_it_restarts_once_in_its_own_process_but_with_a_setting_of_the_user():
    first, second, end = ran("a word", "--flag=1")
    assert first[0] == second[0] == "begins" and end[0] == "goes"
    assert first[1] == second[1]  # whoever waits for the process waits on
    assert [each[2] for each in (first, second)] == [
        "['a word', '--flag=1'] None",
        "['a word', '--flag=1'] glibc.malloc.hugetlb=1",
    ]
    assert end[2].endswith("what it is asked")  # the input is still there
    first, end = ran(GLIBC_TUNABLES="")
    assert first[2].rstrip() == "[]" and end[0] == "goes"
