#!/usr/bin/env bash
# A pod on one machine, of processes with fake CPU devices: see usage below and docs/guides/launch.md.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat << 'END'
launch/local_pod.sh N M [--retries=R] -- arguments of retrieval.main

Runs N processes of retrieval.main with M fake CPU devices each, joined as the hosts of a pod are.

When one process fails, the others are killed, and the pod starts again at most R times (0); so it does when they end
by themselves with 75. SIGTERM goes to every process, as when a pod is preempted: they save, and the script ends with
75. Arguments that are wrong end it with 2.
END
}

fail() {
  printf 'error: %s\n' "$1" >&2
  exit 2
}

is_count() {
  [[ $1 =~ ^[1-9][0-9]{0,3}$ ]]
}

case ${1:-} in --help | -h) usage && exit 0 ;; esac
hosts=${1:-} devices=${2:-} retries=0
is_count "$hosts" && is_count "$devices" ||
  fail "N processes and M devices of each are needed, such as: launch/local_pod.sh 2 4 -- --config=… (--help explains)"
shift 2
case ${1:-} in --retries=*) retries=${1#*=} && shift ;; esac
[[ $retries =~ ^[0-9]{1,4}$ ]] || fail "--retries='$retries': a whole number is needed"
[ "${1:-}" = -- ] && [ $# -gt 1 ] || fail "the arguments of retrieval.main are missing, after -- (--help explains)"
shift
source launch/environment.sh
export JAX_PLATFORMS=cpu JAX_NUM_PROCESSES=$hosts
export XLA_FLAGS="${XLA_FLAGS:-} --xla_force_host_platform_device_count=$devices"

pids=()
# Every process has a group of its own, with its helpers in it.
signal_all() {
  local pid
  for pid in "${pids[@]}"; do kill "-$1" -- "-$pid" 2> /dev/null || true; done
}
trap 'signal_all KILL' EXIT
trap 'retries=0 && signal_all TERM' TERM
trap 'exit 130' INT

start() {
  local i
  JAX_COORDINATOR_ADDRESS=127.0.0.1:$(free_port)
  export JAX_COORDINATOR_ADDRESS
  set -m
  for ((i = 0; i < hosts; i++)); do
    JAX_PROCESS_ID=$i .venv/bin/python -m retrieval.main "$@" --multihost &
    pids[i]=$!
  done
  set +m
}

free_port() {
  .venv/bin/python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# Waits for all, and leaves in `code` the exit code of the first that failed. Those that save, exit code 75, are let, and
# tell less than any other code: it is also that of those who have lost another.
finish() {
  local i ended
  code=0
  while [ ${#pids[@]} -gt 0 ]; do
    sleep 0.2
    for i in "${!pids[@]}"; do
      kill -0 "${pids[i]}" 2> /dev/null && continue
      ended=0
      wait "${pids[i]}" || ended=$?
      kill -KILL -- "-${pids[i]}" 2> /dev/null || true # helpers that it left behind
      unset "pids[i]"
      case $code in 0 | 75) [ "$ended" -eq 0 ] || code=$ended ;; esac
      case $ended in 0 | 75) ;; *) signal_all KILL ;; esac
    done
  done
}

while true; do
  start "$@"
  finish
  case $code in 0 | 2) exit "$code" ;; esac
  [ "$retries" -gt 0 ] || exit "$code"
  retries=$((10#$retries - 1))
  echo "a process ended with $code: starting again" >&2
done
