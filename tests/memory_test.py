"""What compilation leaves in the heap."""

import platform
import subprocess
import sys

import pytest

# Small blocks that are freed below one that is not: glibc keeps them, for it gives back what is on top alone.
_CODE = """
import ctypes
import jax
from retrieval.common.runtime import devices

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def fill(megabytes):
    blocks = [libc.malloc(64_000) for _ in range(megabytes * 1_000_000 // 64_000)]
    for block in blocks:
        ctypes.memset(block, 1, 64_000)
    last = libc.malloc(64_000)
    for block in blocks:
        libc.free(block)
    return last

def resident():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1000

devices._LONG = 0
devices.trim_after_compiling()
devices.trim_after_compiling()
before = resident()
kept = fill(200)
freed = resident()
jax.jit(lambda x: x @ x + 1)(jax.numpy.ones((8, 8))).block_until_ready()
print(freed - before, resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
def test_it_is_given_back_after_a_long_compilation():
    freed, after = map(float, subprocess.check_output([sys.executable, "-c", _CODE], text=True).split())
    assert freed > 150 and after < 100
