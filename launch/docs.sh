#!/usr/bin/env bash
# The documentation's site, into runs/site. Its packages (launch/docs.lock) are in an environment of their own, .venv/docs.
# `launch/docs.sh serve` shows it while you write.
set -euo pipefail
source "$(dirname "$0")/environment.sh"

set_up_docs() {
  local wanted home=.venv/docs
  wanted=$(cat launch/docs.lock | sha256sum | cut -d ' ' -f 1)
  [ "$(cat "$home/installed" 2>/dev/null)" = "$wanted" ] && return
  echo "setting up $home" >&2
  .venv/bin/python -m venv --clear "$home"
  "$home/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r launch/docs.lock
  echo "$wanted" > "$home/installed"
}

set_up_docs
export NO_MKDOCS_2_WARNING=1  # about a successor of mkdocs
if [ $# = 0 ]; then set -- build --strict --quiet; fi
exec .venv/docs/bin/mkdocs "$@"
