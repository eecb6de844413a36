# Sourced by the other scripts: makes .venv from requirements.lock (exact pins, with hashes) where it is not there or not up to date.
cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "error: Python 3.11, 3.12 or 3.13 is needed; set PYTHON to its path (Debian: apt install python3 python3-venv)" >&2
  return 1
}

# Every step says that it failed: a shell that sources this may go on after errors.
set_up() {
  local python wanted
  wanted=$(cat requirements.lock setup.py | sha256sum | cut -d ' ' -f 1)
  [ "$(cat .venv/installed 2>/dev/null)" = "$wanted" ] && return
  python=$(find_python) || return
  echo "setting up .venv with $("$python" --version)" >&2
  rm -f .venv/installed
  "$python" -m venv .venv || {
    echo "error: $python cannot make a virtual environment (Debian: apt install python3-venv)" >&2
    return 1
  }
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements.lock || return
  .venv/bin/python -m pip check || return
  # For what is installed beside them: as constraints, without the hashes, which would be asked of everything.
  sed -n 's|^\([^ ]*==[^ ]*\).*|\1|p' requirements.lock > .venv/pins.txt || return
  echo "$wanted" > .venv/installed
}

set_up || return
# Large buffers stay with the process instead of going back to the kernel after every step: a quarter of the time on CPU.
export GLIBC_TUNABLES=glibc.malloc.hugetlb=1
