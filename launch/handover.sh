#!/usr/bin/env bash
# The tests against the systems that take over what is trained here: vector databases, clients of embedding servers,
# a server of gs://. As in interop.sh, they are installed into an environment of their own, .venv/handover.
# A package that is missing fails a test here instead of skipping it. Further arguments go to pytest.
set -euo pipefail
source "$(dirname "$0")/beside.sh"

set_up_beside handover
export HANDOVER_TESTS=1
exec .venv/handover/bin/python -m pytest -p no:cacheprovider tests/handover*_test.py "$@"
