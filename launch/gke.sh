#!/usr/bin/env bash
# A run on TPU slices of a GKE cluster, through xpk: see usage below and docs/guides/launch.md.
set -euo pipefail
cd "$(dirname "$0")/.."
source launch/common.sh

usage() {
  cat << 'END'
launch/gke.sh ACTION --cluster=CLUSTER --name=NAME [options] [-- arguments of retrieval.main]

  run       start retrieval.main on all hosts of the slices, as a workload of the cluster
  status    the state of the workload
  delete    stop and delete the workload; the cluster stays

  --cluster=CLUSTER     made by `xpk cluster create`
  --name=NAME           of the workload
  --project, --zone     of the cluster, or what gcloud is configured with
  --type=TYPE           of a slice, such as v6e-4 (run)
  --slices=N            how many slices (1)
  --image=IMAGE         that has the code in its working directory, and its packages with jax[tpu]
  --base-image=IMAGE    without --image: the last commit is copied on it and installed at every start (python:3.11)
  --retries=N           how often the workload is started again (10)
  --grace=SECONDS       from TERM to the end of the program (12, for spot machines: they give a pod 15, whatever is asked,
                        unless their node pool was given more, at most 120; machines on demand give what is asked)
  --dry-run             only print the commands
END
}

actions="run status delete"
declare -A options=(
  [cluster]='' [name]='' [project]='' [zone]='' [type]='' [slices]=1 [image]='' [base-image]=python:3.11
  [retries]=10 [grace]=12 [dry-run]=no
)

workload() {
  local verb=$1
  shift
  execute xpk workload "$verb" "--cluster=${options[cluster]}" "--project=${options[project]}" \
    "--zone=${options[zone]}" "$@"
}

# xpk restarts on 42 and on what a kill leaves (127 to 255); 75 says that the machine was going away, 2 would not help.
run() {
  local image=("--docker-image=${options[image]}") install='' python=python
  if [ -z "${options[image]}" ]; then
    unpack
    image=("--base-docker-image=${options[base-image]}" "--script-dir=$tree")
    install='launch/worker.sh install && '
    python=.venv/bin/python
  fi
  # exec, so that the SIGTERM of a preemption reaches the program and not a shell in front of it.
  workload create "--workload=${options[name]}" "--tpu-type=${options[type]}" "--num-slices=${options[slices]}" \
    "--max-restarts=${options[retries]}" --restart-on-exit-codes=75 "--termination-grace-period-seconds=$((options[grace] + 3))" \
    "${image[@]}" "--command=${install}exec env GLIBC_TUNABLES=glibc.malloc.hugetlb=1 $(quoted "$python" -m retrieval.main "${training[@]}" --multihost "--grace=${options[grace]}")"
}

# xpk copies a folder; that of the repository has .venv and runs/ in it.
unpack() {
  pack
  tree=${archive%.tar.gz}
  execute rm -rf "$tree"
  execute mkdir "$tree"
  execute tar -xzf "$archive" -C "$tree"
}

parse "$@"
require cluster name
check_name cluster
check_name name
check_number slices 1
check_number retries 0
check_number grace 1
if [ "$action" = run ]; then
  require type
  check_slices
fi
check_tool xpk "install it with 'pip install xpk', and make a cluster with 'xpk cluster create'"
find_place

case $action in
  run) run ;;
  status) workload list "--filter-by-job=${options[name]}" ;;
  delete) workload delete "--workload=${options[name]}" --force ;;
esac
