#!/usr/bin/env bash
# The tests against PyTorch, transformers, sentence-transformers and a server of S3. The project does not need these:
# they are installed into an environment of their own, .venv/interop, which sees the packages of .venv. Further
# arguments go to pytest.
set -euo pipefail
source "$(dirname "$0")/environment.sh"

set_up_interop() {
  local wanted home=.venv/interop
  wanted=$(cat requirements.lock setup.py launch/interop.lock | sha256sum | cut -d ' ' -f 1)
  [ "$(cat "$home/installed" 2>/dev/null)" = "$wanted" ] && return
  echo "setting up $home" >&2
  .venv/bin/python -m venv --clear "$home"
  .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    > "$("$home/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/requirements.pth"
  # Its wheels for CPU and for CUDA have one version and other hashes.
  "$home/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps torch==2.13.0
  "$home/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r launch/interop.lock
  echo "$wanted" > "$home/installed"
}

set_up_interop
exec .venv/interop/bin/python -m pytest -p no:cacheprovider tests/interop*_test.py "$@"
