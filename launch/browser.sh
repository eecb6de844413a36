#!/usr/bin/env bash
# The browser with which tests/page_test.py looks at the server's page: Debian's chromium, and what drives it.
# Where it cannot be installed this says so, and that test is skipped.
set -euo pipefail
source "$(dirname "$0")/environment.sh"
missing() {
  echo "no browser ($1): tests/page_test.py will be skipped" >&2
  exit 0
}
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r launch/browser.lock || missing "no playwright"
command -v chromium-headless-shell chromium > /dev/null && exit 0
[ "$(id -u)" = 0 ] && command -v apt-get > /dev/null || missing "apt-get needs root, on Debian"
apt-get update --quiet=2 || missing "no package list"
DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends chromium-headless-shell > /dev/null ||
  missing "chromium-headless-shell cannot be installed"
