#!/usr/bin/env bash
# From nothing to a recall table on this machine: .venv, then every stage of configs/ict_bfs_wlp.py:local.
# Further arguments go to retrieval.main. Call it again to go on where it stopped.
set -euo pipefail
source "$(dirname "$0")/environment.sh"
exec .venv/bin/python -m retrieval.main --config=configs/ict_bfs_wlp.py:local --workdir=runs/quickstart "$@"
