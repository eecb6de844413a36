#!/usr/bin/env bash
# A run on GPU nodes of a Slurm cluster, from a login node: see usage below and docs/guides/launch.md.
set -euo pipefail
# sbatch runs a copy of this file that lies elsewhere, as `slurm.sh job …`, in the folder of --chdir.
[ "${1:-}" = job ] || cd "$(dirname "$0")/.."
source launch/common.sh

usage() {
  cat << 'END'
launch/slurm.sh ACTION --name=NAME [options] [-- arguments of retrieval.main]

  run       submit retrieval.main as a job, one process per node
  status    the jobs of that name
  delete    cancel them

  --name=NAME           of the job
  --nodes=N             how many nodes (1)
  --gpus=N              GPUs of each node (1)
  --cpus=N              CPU cores of each node (8)
  --partition, --account, --time    as of sbatch
  --retries=N           how often the job is queued again after exit code 75 (100)
  --dry-run             only print the commands

The repository, with its .venv, must lie where all nodes see it, and so must --workdir, unless it is on a store.
END
}

actions="run status delete"
declare -A options=(
  [name]='' [nodes]=1 [gpus]=1 [cpus]=8 [partition]='' [account]='' [time]='' [retries]=100 [dry-run]=no
)
restart_code=75 # EX_TEMPFAIL: retrieval.main saved what it had, because its time is up or its node is needed

run() {
  local name
  [ "${options[nodes]}" -eq 1 ] || training+=(--multihost)
  local command=(
    sbatch "--job-name=${options[name]}" "--nodes=${options[nodes]}" --ntasks-per-node=1
    "--gpus-per-node=${options[gpus]}" "--cpus-per-task=${options[cpus]}"
    --requeue --signal=B:TERM@60 --open-mode=append "--output=runs/slurm/${options[name]}-%j.log" "--chdir=$PWD"
  )
  for name in partition account time; do
    [ -z "${options[$name]}" ] || command+=("--$name=${options[$name]}")
  done
  command+=(launch/slurm.sh job "${options[gpus]}" "${options[retries]}" "${training[@]}")
  dry || quoted "${command[@]}" >&2
  execute mkdir -p runs/slurm
  execute "${command[@]}"
}

# On the first node of the job. The signal of --signal comes to this shell alone, before the time is up.
job() {
  local gpus=$1 retries=$2 code signalled=yes
  # They come back through Slurm, and bash would run what it finds in an arithmetic expression.
  [[ $gpus =~ ^[1-9][0-9]{0,3}$ && $retries =~ ^[0-9]{1,9}$ && ${SLURM_RESTART_COUNT:-0} =~ ^[0-9]{1,9}$ ]] ||
    fail "slurm.sh job: numbers of GPUs and of retries are needed; call 'slurm.sh run'"
  shift 2
  # Under Slurm, JAX takes one GPU per process, unless it is told which.
  JAX_LOCAL_DEVICE_IDS=$(seq -s , 0 $((gpus - 1)))
  export JAX_LOCAL_DEVICE_IDS
  # JAX takes three quarters of a GPU's memory by itself. NCCL and CUDA need a part of the rest. It refuses both names.
  [ -n "${XLA_PYTHON_CLIENT_MEM_FRACTION:-}" ] || export XLA_CLIENT_MEM_FRACTION="${XLA_CLIENT_MEM_FRACTION:-0.9}"
  export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK # srun takes it from the job only up to Slurm 22.02
  export GLIBC_TUNABLES=glibc.malloc.hugetlb=1   # environment.sh says why
  trap 'signalled=yes; kill -TERM $! || true' TERM # srun passes it on to all processes
  # The first process that ends must not have the others killed while they save: srun gives the highest exit code.
  srun --kill-on-bad-exit=0 --wait=60 .venv/bin/python -m retrieval.main "$@" &
  # A signal ends `wait` too; once srun has ended, `wait` gives its exit code as often as it is asked.
  while [ "$signalled" = yes ]; do
    signalled=no code=0
    wait $! || code=$?
  done
  [ "$code" -ne "$restart_code" ] || queue_again
  exit "$code"
}

# A job that somebody cancels is told to end in the same way, and is not wanted back.
queue_again() {
  local state restarts=${SLURM_RESTART_COUNT:-0}
  state=$(squeue --noheader --format=%T "--jobs=$SLURM_JOB_ID") || state=unknown
  case $state in COMPLETING | CANCELLED) say "cancelled: not queued again" && return ;; esac
  if [ "$restarts" -ge "$retries" ]; then
    say "not queued again: --retries=$retries"
    return
  fi
  say "queued again, $((restarts + 1)) of at most $retries times"
  scontrol requeue "$SLURM_JOB_ID"
}

# What one node has for itself is not there for the others, nor for the same job on other nodes.
check_shared() {
  case $workdir in
    /tmp/* | /var/tmp/* | /dev/shm/*) fail "--workdir=$workdir is on one node; it must be where all nodes see it" ;;
  esac
}

if [ "${1:-}" = job ]; then
  shift
  job "$@"
fi
parse "$@"
require name
check_name name
check_number nodes 1
check_number gpus 1
check_number cpus 1
check_number retries 0
if [ "$action" = run ]; then
  check_training /shared/runs/RUN
  check_shared
fi
check_tool sbatch "it comes with Slurm; call this on a login node of the cluster"

case $action in
  run)
    dry || [ -x .venv/bin/python ] || fail "there is no .venv; docs/guides/launch.md says how to make it"
    run
    ;;
  status) execute squeue "--name=${options[name]}" "--user=$(id -un)" ;;
  delete) execute scancel "--name=${options[name]}" "--user=$(id -un)" ;;
esac
