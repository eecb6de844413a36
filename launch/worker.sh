#!/usr/bin/env bash
# Called by tpu_vm.sh and gke.sh on every host with accelerators, in the copy of the repository there:
#   worker.sh install              .venv with what requirements.lock pins, jax[tpu] of the version pinned there, and gcsfs
#   worker.sh watch SECONDS END    in the background on the first host: the command END when no run has gone on for so long
#   worker.sh fetch SOURCE TARGET ...   copies data of a bucket to this host
#   worker.sh start ID RETRIES END ARGUMENTS   retrieval.main in the background, its output in run/log; again after exit
#                                  code 75, at most RETRIES times. The first host then runs the command END, if it is not ''
#   worker.sh follow               shows that output to the end, and exits with the exit code of retrieval.main
set -euo pipefail
cd "$(dirname "$0")/.."

install() {
  has_python || add_python
  source launch/environment.sh
  # As constraints, so that the extra moves no pin.
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -c .venv/pins.txt gcsfs \
    "jax[tpu]==$(sed -n 's/^jax==//p' .venv/pins.txt)"
}

has_python() {
  command -v python3.11 || command -v python3.12 || command -v python3.13
} > /dev/null

# On the Ubuntu 22.04 of the TPU images python3 is 3.10, and 3.11 a package. A new machine updates itself at first, and
# holds the lock meanwhile.
add_python() {
  sudo apt-get -o DPkg::Lock::Timeout=600 --quiet update
  sudo apt-get -o DPkg::Lock::Timeout=600 --quiet --yes install python3.11 python3.11-venv
}

# Whoever made the slice may be gone, and so may the shell that was to end it.
watch() {
  is_first || return 0
  mkdir -p run
  exec 8>> run/watched # until the background process ends; gcloud repeats its command when a connection breaks
  flock --nonblock 8 || return 0
  setsid launch/worker.sh end_when_idle "$@" < /dev/null > /dev/null 2>&1 &
  echo $! > run/watched
}

end_when_idle() {
  local seconds=$1 end=$2 since=$SECONDS
  while [ $((SECONDS - since)) -lt "$seconds" ]; do
    sleep "${PAUSE_SECONDS:-30}"
    flock --nonblock run/lock true || since=$SECONDS
  done
  $end
}

fetch() {
  mkdir -p run
  exec 9> run/lock
  flock --shared --nonblock 9 || true # not idle meanwhile
  while [ $# -gt 0 ]; do
    mkdir -p "$(dirname "$2")"
    gcloud storage cp --recursive --quiet "$1" "$(dirname "$2")/"
    shift 2
  done
}

# gcloud repeats its command when a connection breaks, and must not start a second run then: hence the ID.
start() {
  local id=$1
  shift
  [ "$(cat run/id 2> /dev/null)" != "$id" ] || return 0
  [ -x .venv/bin/python ] || refuse "there is no .venv on this host; 'install' makes it"
  mkdir -p run
  exec 9> run/lock
  flock --timeout 5 9 || refuse "a run is going on on this host; 'attach' follows it, 'delete' ends it with the machine"
  rm -f run/code
  echo "$id" > run/id
  export GLIBC_TUNABLES=glibc.malloc.hugetlb=1 # environment.sh says why
  : > run/log # here, not by the program: `follow` may come first
  # A session of its own outlives the connection, and needs nobody who watches.
  setsid launch/worker.sh supervise "$@" < /dev/null >> run/log 2>&1 &
}

# When the machine stops, this shell waits for the program to save, and neither starts nor ends anything.
supervise() {
  local retries=$1 end=$2 code restarts stops=
  shift 2
  trap 'stops=yes' TERM
  for ((restarts = 0; ; restarts++)); do
    code=0
    .venv/bin/python -m retrieval.main "$@" 9>&- || code=$?
    [ "$code" -eq 75 ] && [ -z "$stops" ] && [ "$restarts" -lt "$retries" ] || break
    echo "starting again, $((restarts + 1)) of at most $retries times"
    sleep "${PAUSE_SECONDS:-30}"
  done
  echo "$code" > run/code
  exec 9>&- # `follow` ends
  [ -z "$end" ] || [ -n "$stops" ] || ! is_first || { sleep "${PAUSE_SECONDS:-120}" && $end; }
}

# Of a slice; the metadata server knows.
is_first() {
  local number
  number=$(curl --silent --fail --header 'Metadata-Flavor: Google' \
    http://metadata.google.internal/computeMetadata/v1/instance/attributes/agent-worker-number) || return
  [ "$number" = 0 ]
}

# The lock is held as long as the shell of `start` lives; a process id could be another program's after a reboot.
follow() {
  [ -e run/log ] || refuse "nothing was started on this host"
  flock run/lock true &
  tail --pid=$! --sleep-interval=0.1 --lines=+1 --follow run/log
  [ -e run/code ] || { echo "error: the run was killed, or this host was restarted" >&2 && exit 1; }
  exit "$(cat run/code)"
}

refuse() {
  echo "error: $1" >&2
  exit 2
}

case ${1:-} in
  install | watch | end_when_idle | fetch | start | supervise | follow) "$@" ;;
  *) refuse "unknown action '${1:-}'; known: install, watch, fetch, start, follow" ;;
esac
