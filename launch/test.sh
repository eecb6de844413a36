#!/usr/bin/env bash
# Lint, types and every test but the long ones (`./launch/test.sh -m long` runs those). Further arguments go to pytest.
set -euo pipefail
source "$(dirname "$0")/environment.sh"
.venv/bin/ruff format --check --quiet .
.venv/bin/ruff check --quiet .
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r launch/types.lock -r launch/serve.lock
.venv/bin/pyright & # on one core, beside the tests
types=$! code=0
unset PYTHONDONTWRITEBYTECODE # else each worker, and each process of a test, compiles all that it imports
# A file's tests stay together: they share what is dear to make.
.venv/bin/python -m pytest --numprocesses=3 --dist=loadfile "$@" || code=$?
wait "$types" || { code=$? && echo "pyright found errors, above"; }
exit "$code"
