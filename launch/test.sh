#!/usr/bin/env bash
# Lint and every test but the long ones (`./launch/test.sh -m long` runs those). Further arguments go to pytest.
set -euo pipefail
source "$(dirname "$0")/environment.sh"
.venv/bin/ruff format --check --quiet .
.venv/bin/ruff check --quiet .
exec .venv/bin/python -m pytest "$@"
