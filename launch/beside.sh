# Sourced by interop.sh and handover.sh: set_up_beside NAME [PACKAGE..] makes .venv/NAME, an environment that sees the
# packages of .venv and adds those of launch/NAME.lock, where it is not there or not up to date.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

set_up_beside() {
  local name=$1 home=.venv/$1 wanted
  shift
  wanted=$(cat requirements.lock setup.py "launch/$name.lock" | sha256sum | cut -d ' ' -f 1)
  [ "$(cat "$home/installed" 2>/dev/null)" = "$wanted" ] && return
  echo "setting up $home" >&2
  .venv/bin/python -m venv --clear "$home"
  .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    > "$("$home/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/requirements.pth"
  "$home/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "$@" -r "launch/$name.lock"
  echo "$wanted" > "$home/installed"
}
