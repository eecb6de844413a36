#!/usr/bin/env bash
# The tests against PyTorch, transformers, sentence-transformers and a server of S3. The project does not need these:
# they are installed into an environment of their own, .venv/interop, which sees the packages of .venv. Further
# arguments go to pytest.
set -euo pipefail
source "$(dirname "$0")/beside.sh"

# torch's wheels for CPU and for CUDA have one version and other hashes.
set_up_beside interop torch==2.13.0
exec .venv/interop/bin/python -m pytest -p no:cacheprovider tests/interop*_test.py "$@"
