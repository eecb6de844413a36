"""A day on an accelerator: everything that is to be measured there, by one command, on a bare machine."""

from benchmarks.accelerator import bare  # noqa: F401 (before what imports the packages that may be absent)
