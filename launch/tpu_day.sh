#!/usr/bin/env bash
# The benchmarks of an accelerator on a TPU VM of one host, from nothing: see usage below and benchmarks/README.md.
set -euo pipefail
cd "$(dirname "$0")/.."
source launch/common.sh

usage() {
  cat << 'END'
launch/tpu_day.sh ACTION --name=NAME [options]

  up        create a TPU VM, put the last commit and the packed data on it, measure, fetch the results, delete it
  cost      what `up` will cost, at most

  --name=NAME           of the queued resource and of the VM
  --project, --zone     or what gcloud is configured with
  --type=TYPE           v5litepod-8 (the default) or v3-8: one host with eight devices
  --data=FOLDER         what benchmarks.accelerator.pack made
  --out=FOLDER          for the results; those of an earlier day there are gone on with
  --minutes=N           of all works together (40)
  --spot                cheaper, and may be preempted: the same command goes on with what is not done
  --dry-run             only print the commands

Prices are an assumption: US dollars a chip and hour, on demand, of cloud.google.com/tpu/pricing as remembered in
November 2026, not looked up. PRICE in the environment is another one.
END
}

actions="up cost"
declare -A options=(
  [name]='' [project]='' [zone]='' [type]=v5litepod-8 [data]='' [out]='' [minutes]=40 [spot]=no [dry-run]=no
)
set_up_minutes=15 # until the VM is there and installed, and until it is deleted

price() {
  case ${options[type]} in
    v5litepod-8) chips=8 dollars=${PRICE:-1.20} ;;
    v3-8) chips=4 dollars=${PRICE:-2.20} ;;
    *) fail "--type=${options[type]}: v5litepod-8 or v3-8, which have one host" ;;
  esac
}

cost() {
  awk -v chips="$chips" -v dollars="$dollars" -v minutes="$((options[minutes] + set_up_minutes))" \
    'BEGIN { printf "%d chips x $%.2f x %d minutes: $%.2f at most\n", chips, dollars, minutes, chips * dollars * minutes / 60 }'
}

tpu_vm() {
  local action=$1
  shift
  local switches=()
  [ "${options[dry-run]}" = no ] || switches=(--dry-run)
  launch/tpu_vm.sh "$action" "--name=${options[name]}" "--project=${options[project]}" "--zone=${options[zone]}" \
    "${switches[@]}" "$@"
}

gcloud_vm() {
  local verb=$1
  shift
  execute gcloud compute tpus tpu-vm "$verb" "$@" "--project=${options[project]}" "--zone=${options[zone]}"
}

# Results that are there already go along, and come back with what was added.
measure() {
  local vm=${options[name]} command
  execute mkdir -p "${options[out]}"
  gcloud_vm scp --recurse "${options[data]}" "$vm:packed"
  gcloud_vm scp --recurse "${options[out]}" "$vm:results"
  command="cd retrieval && .venv/bin/python -m benchmarks.accelerator --data=../packed --out=../results"
  gcloud_vm ssh "$vm" --ssh-flag=-oServerAliveInterval=30 "--command=$command --minutes=${options[minutes]}" ||
    say "the works ended early; what they found is fetched"
  gcloud_vm scp --recurse "$vm:results/*" "${options[out]}"
}

up() {
  local spot=()
  [ "${options[spot]}" = no ] || spot=(--spot)
  say "$(cost)"
  tpu_vm create "--type=${options[type]}" "${spot[@]}"
  trap 'tpu_vm delete' EXIT # however the rest ends: it costs money until then
  tpu_vm copy
  tpu_vm install
  measure
}

parse "$@"
check_number minutes 1
price
if [ "$action" = up ]; then
  require name data out
  check_name name
  [ -d "${options[data]}" ] || fail "--data=${options[data]}: no such folder; benchmarks/README.md says how it is made"
  check_gcloud
  find_place
fi
trap 'exit 130' INT
trap 'exit 143' TERM
"$action"
