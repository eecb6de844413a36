# Sourced by tpu_vm.sh, gke.sh and slurm.sh, which declare `actions`, `options` (name to default; yes and no make a
# switch) and `usage`. `parse` leaves the `action`, the options, and in `training` the arguments of retrieval.main.

origin=${OLDPWD:-$PWD} # where the script was called

fail() {
  printf 'error: %s\n' "$1" >&2
  exit 2
}

say() {
  printf '%s\n' "$*" >&2
}

quoted() {
  local line
  printf -v line '%q ' "$@"
  printf '%s\n' "${line% }"
}

dry() {
  [ "${options[dry-run]}" = yes ]
}

# The command, or with --dry-run only its line.
execute() {
  if dry; then quoted "$@"; else "$@"; fi
}

# What the command prints, in `answer`; with --dry-run its line is printed and the answer is the first argument.
ask() {
  answer=$1
  shift
  if dry; then quoted "$@"; else answer=$("$@"); fi
}

parse() {
  [ $# -gt 0 ] || fail "an action is missing: ${actions// /, } (--help explains them)"
  case $1 in
    --help | -h) usage && exit 0 ;;
    *) [[ " $actions " = *" $1 "* ]] || fail "unknown action '$1'; known: ${actions// /, }" ;;
  esac
  action=$1
  shift
  training=()
  while [ $# -gt 0 ]; do
    case $1 in
      --) training=("${@:2}") && return ;;
      --help | -h) usage && exit 0 ;;
      --*=*) set_option "${1%%=*}" "${1#*=}" && shift ;;
      *)
        check_known "$1"
        if is_switch "$1"; then
          set_option "$1" yes && shift
        else
          [ $# -gt 1 ] && [[ $2 != --* ]] || fail "$1 needs a value, such as $1=VALUE"
          set_option "$1" "$2" && shift 2
        fi
        ;;
    esac
  done
}

# Compared one by one: as a subscript, a name with $(…) in it would be evaluated.
check_known() {
  local known
  for known in "${!options[@]}"; do
    [ "--$known" = "$1" ] && return
  done
  known=$(printf -- '--%s\n' "${!options[@]}" | sort | paste -sd ' ')
  fail "unknown option '$1'; known: $known (the arguments of retrieval.main go after --)"
}

is_switch() {
  [[ $1 =~ ^--[a-z-]+$ ]] && [[ ${options[${1#--}]:-} =~ ^(yes|no)$ ]]
}

set_option() {
  check_known "$1"
  if is_switch "$1" && [[ ! $2 =~ ^(yes|no)$ ]]; then fail "$1 takes no value, not '$2'"; fi
  options[${1#--}]=$2
}

require() {
  local name
  for name in "$@"; do
    [ -n "${options[$name]}" ] || fail "--$name is missing: '$action' needs it (--help explains it)"
  done
}

# Also what makes a name safe to compare with what the cloud lists, and to be part of a path.
check_name() {
  [[ ${options[$1]} =~ ^[a-z]([-a-z0-9]*[a-z0-9])?$ ]] ||
    fail "--$1='${options[$1]}': small letters, digits and dashes, a letter first"
}

check_number() {
  [[ ${options[$1]} =~ ^(0|[1-9][0-9]{0,8})$ ]] && [ "${options[$1]}" -ge "$2" ] ||
    fail "--$1='${options[$1]}': a whole number of at least $2 is needed"
}

check_tool() {
  dry || command -v "$1" > /dev/null || fail "$1 not found: $2"
}

check_gcloud() {
  check_tool gcloud "install the Google Cloud CLI (package google-cloud-cli), then 'gcloud auth login'"
}

# --project and --zone, or else what gcloud is configured with.
find_place() {
  fill_in project project
  fill_in zone compute/zone
}

fill_in() {
  [ -z "${options[$1]}" ] || return 0
  check_gcloud
  ask "${1^^}" gcloud config get-value "$2" 2> /dev/null || answer=
  [ -n "$answer" ] && [ "$answer" != '(unset)' ] ||
    fail "no $1 is set: give --$1=${1^^}, or 'gcloud config set $2 ${1^^}'"
  options[$1]=$answer
}

check_training() {
  [ ${#training[@]} -gt 0 ] ||
    fail "nothing to run: the arguments of retrieval.main go after --, as in -- --config=configs/mlm.py --workdir=$1"
  find_workdir
  [ -n "$workdir" ] || fail "--workdir is missing among the arguments after --, such as --workdir=$1"
}

find_workdir() {
  local i
  workdir=
  for i in "${!training[@]}"; do
    case ${training[i]} in
      --workdir=*) workdir=${training[i]#*=} ;;
      --workdir) workdir=${training[i + 1]:-} ;;
    esac
  done
}

# The arguments of a run on slices. Every host writes to the same place, and so does whatever comes after a restart.
check_slices() {
  check_training gs://BUCKET/RUN
  case $workdir in
    gs://?*) ;;
    /*) say "warning: --workdir=$workdir must be a folder that all hosts share, and that outlives them" ;;
    *) fail "--workdir=$workdir would be another folder on every host, deleted with it; name one such as gs://BUCKET/RUN" ;;
  esac
}

# Of the arguments those that name files or folders of this machine, or data in a bucket, by themselves or with commas
# between: sets `given` and `targets`, what is there and where hosts have it, and names that place in `training`. Runs in a
# bucket stay, for the program reads them there.
find_inputs() {
  local i j field parts path before
  given=() targets=()
  for i in "${!training[@]}"; do
    [[ ${training[i]} =~ ^--config\.([a-z_.]+)=(.+)$ ]] || continue
    field=${BASH_REMATCH[1]}
    before=${#given[@]}
    IFS=, read -r -a parts <<< "${BASH_REMATCH[2]}"
    for j in "${!parts[@]}"; do
      path=${parts[j]}
      if [[ $path = gs://* ]]; then
        [[ $field =~ ^(corpus|vocab|(sets|pairs|spans)\..*)$ ]] || continue
      else
        [[ $path = /* ]] || path=$origin/$path
        [[ $field != plugins && -e $path ]] || continue
        [[ $workdir = gs://* ]] || fail "$path is here, and not on the hosts: put it where they see it, or name a gs:// --workdir"
      fi
      given+=("${path%/}")
      parts[j]=run/inputs/${#given[@]}/$(basename "$path")
      targets+=("${parts[j]}")
    done
    [ ${#given[@]} -gt "$before" ] || continue
    printf -v path '%s,' "${parts[@]}"
    training[i]=--config.$field=${path%,}
  done
}

# Where `stage` puts a file of this machine; what is in a bucket stays where it is.
staged() {
  if [[ $1 = gs://* ]]; then echo "$1"; else echo "${workdir%/}-inputs/$2/$(basename "$1")"; fi
}

# Checks the arguments on this machine, as the program does before its first stage, with as many CPU devices as a slice has.
check_config() {
  local arguments=() argument folder
  for argument in "${asked[@]}"; do
    case $argument in
      --workdir=*) ;;
      *://*) say "not checked here, for it is read from a bucket: $argument" && return ;;
      *) arguments+=("$argument") ;;
    esac
  done
  [ -x .venv/bin/python ] || dry || { say "not checked here, for there is no .venv: source launch/environment.sh" && return; }
  if dry; then folder=FOLDER; else folder=$(mktemp -d); fi
  execute env -C "$origin" JAX_PLATFORMS=cpu "PYTHONPATH=$PWD" "XLA_FLAGS=--xla_force_host_platform_device_count=$1" \
    "$PWD/.venv/bin/python" -m retrieval.main "${arguments[@]}" "--workdir=$folder/run" --check ||
    { rm -rf "$folder" && fail "the run would not start, see above; nothing was created"; }
  rm -rf "$folder"
}

# The tree of the last commit, packed into `archive`: what is run can be found again.
pack() {
  local folder=${XDG_CACHE_HOME:-$HOME/.cache}/retrieval
  archive=$folder/${options[name]}.tar.gz
  ask '' git status --porcelain || return
  [ -z "$answer" ] || say "warning: there are changes that are not committed; what is copied is the last commit"
  execute mkdir -p "$folder" && execute git archive --format=tar.gz --output="$archive" HEAD
}
