#!/usr/bin/env bash
# A run on a Cloud TPU slice: see usage below and docs/guides/launch.md.
set -euo pipefail
cd "$(dirname "$0")/.."
source launch/common.sh

usage() {
  cat << 'END'
launch/tpu_vm.sh ACTION --name=NAME [options] [-- arguments of retrieval.main]

  check     check the arguments on this machine, as a run does before its first stage; nothing is created
  stage     copy the files of this machine that the arguments name to the bucket, into WORKDIR-inputs
  create    ask for a TPU slice (a queued resource) and wait until it is there
  copy      put the last commit on all its hosts, in the place of an earlier one; .venv and run/ stay
  install   .venv with requirements.lock and jax[tpu], on all hosts
  fetch     copy what was staged, and data in a bucket that the arguments name, to all hosts
  run       start retrieval.main on all hosts and show its output; the exit code is that of the first host that failed
  attach    show the output of the run again, from its beginning to its end
  up        check, stage, create, copy, install, fetch, run, delete; from `create` on again after a preemption
  status    the states of the queued resource and of the slice
  delete    delete both

  --name=NAME           of the queued resource and of the slice
  --project, --zone     or what gcloud is configured with
  --type=TYPE           such as v3-32 (create, up)
  --runtime=VERSION     of the machine image, if not the usual one of the type
  --spot                cheaper, and may be preempted
  --timeout=SECONDS     how long to wait in the queue (14400)
  --service-account=S   of the slice, if not the project's default one (create, up)
  --retries=N           how often a run is started again (10)
  --detach              `run` and `up` end when the run has started; the slice goes on, and after `up` deletes itself
  --idle=MINUTES        after `up` has copied the code, the slice deletes itself when no run has gone on for so long (60)
  --keep                `up` leaves the slice as it is, however the run ends, and however long it is idle
  --dry-run             only print the commands

POLL_SECONDS (15) in the environment is the time between two looks at a state.
END
}

actions="check stage create copy install fetch run attach up status delete"
declare -A options=(
  [name]='' [project]='' [zone]='' [type]='' [runtime]='' [spot]=no [timeout]=14400 [retries]=10
  [service-account]='' [idle]=60 [detach]=no [keep]=no [dry-run]=no
)
restart_code=75 # EX_TEMPFAIL: retrieval.main saved what it had, because its machine is going away
error_code=2    # wrong arguments: starting again would not help
lost_code=255   # of ssh
making=         # not empty while this call has a slice half made
paid=           # not empty while a slice is there that costs money
child=          # the process group of the gcloud that shows a run

tpus() {
  local group=$1 verb=$2
  shift 2
  command=(gcloud compute tpus "$group" "$verb" "$@" "--project=${options[project]}" "--zone=${options[zone]}")
}

advice() {
  quoted launch/tpu_vm.sh "$1" "--name=${options[name]}" "--project=${options[project]}" "--zone=${options[zone]}"
}

# Of JAX, of a slice: v2 to v3 are counted in cores, which are devices, v4 and v5p in cores of which a device has two.
devices() {
  case ${options[type]} in
    v4-* | v5p-*) echo $((${options[type]##*-} / 2)) ;;
    *) echo "${options[type]##*-}" ;;
  esac
}

usual_runtime() {
  case $1 in
    v2-* | v3-* | v4-*) echo tpu-ubuntu2204-base ;;
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v6e-*) echo v2-alpha-tpuv6e ;;
    *) fail "no runtime version is known for --type=$1; give --runtime=VERSION" ;;
  esac
}

# is_listed GROUP ANSWER_IN_A_DRY_RUN: an empty list is no error, but a `describe` may fail for any reason.
is_listed() {
  tpus "$1" list '--format=value(name)'
  ask "$2" "${command[@]}" || fail "gcloud could not list the $1 of project ${options[project]}, see above"
  grep -qxE "(.*/)?${options[name]}" <<< "$answer"
}

create() {
  local spot=()
  [ "${options[spot]}" = no ] || spot=(--spot)
  [ -z "${options[service-account]}" ] || spot+=("--service-account=${options[service-account]}")
  ! is_listed queued-resources '' || fail "${options[name]} exists already; '$(advice delete)' deletes it"
  tpus queued-resources create "${options[name]}" "--node-id=${options[name]}" "--accelerator-type=${options[type]}" \
    "--runtime-version=$runtime" "${spot[@]}"
  dry || making=yes
  # Not interrupted half way, when nobody knows whether the request has arrived: it is deleted afterwards.
  (trap '' INT TERM && execute "${command[@]}") || fail "gcloud could not ask for ${options[name]}, see above"
  wait_until_active
  making=
  dry || paid=yes
}

wait_until_active() {
  local state='' deadline=$((SECONDS + options[timeout]))
  while true; do
    tpus queued-resources describe "${options[name]}" '--format=value(state.state)'
    ask ACTIVE "${command[@]}" || answer=unknown # one lost answer is no reason to leave the queue
    [ "$answer" = "$state" ] || dry || say "${options[name]}: $answer"
    state=$answer
    case $state in
      ACTIVE) return ;;
      FAILED | SUSPENDING | SUSPENDED | DELETING) say_why && fail "${options[name]} is $state, see above" ;;
    esac
    [ "$SECONDS" -lt "$deadline" ] || fail "${options[name]} is still $state after --timeout=${options[timeout]}"
    nap
  done
}

# Bash answers a signal only after its command, but at once while it waits for a job. The sleep may outlive the script,
# and must keep nobody waiting for its output.
nap() {
  sleep "${POLL_SECONDS:-15}" > /dev/null 2>&1 &
  wait $!
}

say_why() {
  tpus queued-resources describe "${options[name]}"
  "${command[@]}" >&2 || true
}

# What is not in the commit goes, so that nobody imports a module that has been renamed or removed.
copy() {
  pack || return
  tpus tpu-vm scp "$archive" "${options[name]}:retrieval.tar.gz" --worker=all
  execute "${command[@]}" && on_all_hosts "mkdir -p retrieval && find retrieval -mindepth 1 -maxdepth 1 \
    ! -name .venv ! -name run -exec rm -rf {} + && tar -xzf retrieval.tar.gz -C retrieval"
}

# install_all [COMMAND]: that the first host runs when no run has gone on for --idle.
install_all() {
  local command_line
  command_line=$(worker install)
  [ -z "${1:-}" ] || command_line="$(worker watch $((options[idle] * 60)) "$1") && $command_line"
  on_all_hosts "$command_line"
}

stage() {
  local i
  for i in "${!given[@]}"; do
    [[ ${given[i]} = gs://* ]] ||
      execute gcloud storage cp --recursive "--project=${options[project]}" "${given[i]}" "${workdir%/}-inputs/$((i + 1))/"
  done
}

fetch() {
  local i pairs=()
  for i in "${!given[@]}"; do pairs+=("$(staged "${given[i]}" $((i + 1)))" "${targets[i]}"); done
  [ ${#pairs[@]} -eq 0 ] || on_all_hosts "$(worker fetch "${pairs[@]}")"
}

# run [COMMAND]: that the first host runs when the run has ended.
run() {
  local command_line
  command_line=$(worker start "$(date +%s)-$$" "${options[retries]}" "${1:-}" "${training[@]}" --multihost)
  [ "${options[detach]}" = yes ] || command_line+=" && $(worker follow)"
  on_all_hosts "$command_line"
}

worker() {
  quoted retrieval/launch/worker.sh "$@"
}

# A host that is gone closes no connection: ssh has to ask.
on_all_hosts() {
  tpus tpu-vm ssh "${options[name]}" --worker=all --ssh-flag=-oServerAliveInterval=30 "--command=$1"
  if dry; then execute "${command[@]}"; else in_own_group "${command[@]}"; fi
}

# Waited for like a nap, because a run may take days. In a process group of its own, gcloud ends with its children.
in_own_group() {
  local code=0
  set -m
  "$@" < /dev/null &
  child=$!
  set +m
  wait "$child" || code=$?
  child=
  return "$code"
}

# The slice deletes itself, so that nobody has to be there when the run ends; who follows it is sooner.
up() {
  local code restarts end=''
  check_config "$(devices)"
  stage
  if [ "${options[keep]}" = no ]; then
    tpus queued-resources delete "${options[name]}" --force --quiet --async
    end=$(quoted "${command[@]}")
  fi
  for ((restarts = 0; ; restarts++)); do
    code=0
    create
    { copy && install_all "$end" && fetch && run "$end"; } || code=$?
    [ "$code" -ne 0 ] || break
    say "${options[name]}: exit code $code"
    should_restart "$code" || break
    if [ "$restarts" -ge "${options[retries]}" ]; then
      say "not started again: --retries=${options[retries]}"
      break
    fi
    say "starting again, $((restarts + 1)) of at most ${options[retries]} times"
    delete
  done
  # After a connection that is lost for good the run may go on.
  [ "${options[keep]}" = yes ] || [ "${options[detach]}" = yes ] || [ "$code" -eq "$lost_code" ] || delete
  return "$code"
}

should_restart() {
  [ "$1" -ne "$error_code" ] || return
  [ "$1" -eq "$restart_code" ] || was_preempted
}

# The states come after the event: a run may end a minute before they tell why.
was_preempted() {
  local look
  for look in 1 2 3 4 5; do
    [ "$look" -eq 1 ] || nap
    [[ $(state_of queued-resources state.state) =~ ^(SUSPENDING|SUSPENDED)$ ]] && return
    [[ $(state_of tpu-vm state) =~ ^(PREEMPTED|TERMINATED|STOPPING|STOPPED)$ ]] && return
  done
  return 1
}

state_of() {
  tpus "$1" describe "${options[name]}" "--format=value($2)"
  execute "${command[@]}"
}

status() {
  state_of queued-resources state.state
  state_of tpu-vm 'state,health'
}

# The queued resource with --force takes its slice along; a slice that is left all the same would cost money unseen.
delete() {
  local found=no
  if is_listed queued-resources "${options[name]}"; then
    tpus queued-resources delete "${options[name]}" --force --quiet
    execute "${command[@]}" || return
    found=yes
  fi
  if is_listed tpu-vm "${options[name]}"; then
    tpus tpu-vm delete "${options[name]}" --quiet
    execute "${command[@]}" || return
    found=yes
  fi
  paid=
  [ "$found" = yes ] || say "there is neither a queued resource nor a slice ${options[name]}"
}

# What only this call made half is deleted. A run that was made and started is not: it has cost time in the queue.
on_exit() {
  local code=$?
  trap '' INT TERM
  if [ -n "$child" ]; then kill -TERM -- "-$child" && wait "$child" || true; fi
  if [ -n "$making" ]; then
    say "deleting ${options[name]}, which is not finished"
    delete || say "error: it could not be deleted; do it with: $(advice delete)"
  elif [ -n "$paid" ]; then
    [ "$code" -le 128 ] && [ "${options[detach]}" = no ] || say "a run that has started goes on; follow it with: $(advice attach)"
    [ "$action" != up ] || [ "${options[keep]}" = yes ] || say "the slice deletes itself when the run has ended; else:"
    say "${options[name]} costs money until it is deleted, with: $(advice delete)"
  fi
  exit "$code"
}

parse "$@"
require name
check_name name
check_number timeout 0
check_number retries 0
check_number idle 1
case $action in check | create | up) require type && runtime=${options[runtime]:-$(usual_runtime "${options[type]}")} ;; esac
case $action in
  run | up) ;;
  *) [ "${options[detach]}" = no ] || fail "--detach is for 'run' and 'up'; '$action' waits" ;;
esac
case $action in
  check | stage | fetch | run | up)
    check_slices
    asked=("${training[@]}")
    find_inputs
    ;;
esac
check_gcloud
find_place

trap on_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
case $action in
  check) check_config "$(devices)" ;;
  install) install_all ;;
  run | attach)
    dry || paid=yes
    if [ "$action" = run ]; then run; else on_all_hosts "$(worker follow)"; fi
    ;;
  *) "$action" ;;
esac
