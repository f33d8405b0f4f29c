#!/usr/bin/env bash
# Runs a training on a Cloud TPU slice, with gcloud
# (https://cloud.google.com/tpu/docs/queued-resources):
#
#   export ZONE=us-west4-a TYPE=v5litepod-16 SPOT=1
#   launch/tpu_vm.sh keep NAME python -m transformer_jax.train_gpt \
#       --config=configs/gpt/gpt2.py:124m --workdir=gs://BUCKET/DIR
#
# `keep` creates the slice, installs the package and starts the command on all workers. If the slice
# is taken away, it repeats all that until the command ends. The single steps:
#
#   create NAME            requests the slice and waits until it is active
#   install NAME           copies the commit of this checkout to all workers and installs it
#   run NAME COMMAND...    starts the command on all workers, independent of this machine
#   logs NAME              follows the output of worker 0
#   status NAME            prints the slice's state, and the command's exit code when it has ended
#   fetch NAME FROM TO     copies a folder from worker 0; for a bucket, use gcloud storage cp
#   delete NAME            deletes the slice
#
# --print, before the step, prints the commands without running them. ZONE and TYPE are required.
# Optional: PROJECT, SPOT=1, RUNTIME (the VM's software, default by TYPE), EVERY (seconds between
# two checks of the slice, default 60), SHIP_CHANGES=1 (copies the changes that are not committed and
# the new files, too; without it, a checkout with changes is refused).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
fail() { echo "${0##*/}: $*" >&2; exit 2; }

dry=
[[ ${1:-} == --print ]] && { dry=1; shift; }
[[ $# -ge 2 ]] || fail "usage: ${0##*/} [--print] keep|create|install|run|logs|status|fetch|delete NAME ..."
step=$1 name=$2
shift 2
: "${ZONE:?tpu_vm.sh: ZONE is missing, e.g. ZONE=us-west4-a}" "${TYPE:?tpu_vm.sh: TYPE is missing, e.g. TYPE=v5litepod-16}"
case $TYPE in
  v5litepod-*) runtime=v2-alpha-tpuv5-lite ;;
  v5p-*) runtime=v2-alpha-tpuv5 ;;
  v6e-*) runtime=v2-alpha-tpuv6e ;;
  *) runtime=tpu-ubuntu2204-base ;;
esac
where=(--zone="$ZONE" ${PROJECT:+--project="$PROJECT"} --quiet)

do_() {
  if [[ $dry ]]; then
    printf '%q ' "$@"
    echo
  else
    "$@"
  fi
}
on() { # on WORKER COMMAND
  do_ gcloud compute tpus tpu-vm ssh "$name" "${where[@]}" --worker="$1" --command="$2"
}
state() { # prints ACTIVE, WAITING_FOR_RESOURCES, SUSPENDED, ..., or nothing without such a slice
  gcloud compute tpus queued-resources describe "$name" "${where[@]}" --format='value(state.state)' 2>/dev/null || true
}

create() {
  do_ gcloud compute tpus queued-resources create "$name" --node-id="$name" "${where[@]}" --accelerator-type="$TYPE" --runtime-version="${RUNTIME:-$runtime}" ${SPOT:+--spot}
  [[ $dry ]] && return
  while now=$(state); [[ $now != ACTIVE ]]; do
    case $now in
      FAILED | SUSPENDED | SUSPENDING | "") echo "${0##*/}: $name is ${now:-gone}" >&2; return 1 ;;
    esac
    echo "${0##*/}: $name is $now" >&2
    sleep "${EVERY:-60}"
  done
}
pack() { # packs this checkout into $work/transformer_jax.tgz
  local changes tree=HEAD
  changes=$(git -C "$here" status --porcelain --untracked-files=normal)
  if [[ $changes ]]; then
    echo "$changes" >&2
    [[ ${SHIP_CHANGES:-} ]] ||
      fail "$here has changes that are not committed; commit them, or set SHIP_CHANGES=1 to ship them"
    echo "${0##*/}: ships these changes, too" >&2
    # An index of its own leaves the user's as it is.
    tree=$(GIT_INDEX_FILE=$work/index bash -c 'git -C "$1" read-tree HEAD && git -C "$1" add --all && git -C "$1" write-tree' - "$here")
  fi
  do_ git -C "$here" archive --format=tar.gz --output="$work/transformer_jax.tgz" "$tree"
}
install() {
  do_ gcloud compute tpus tpu-vm scp "$work/transformer_jax.tgz" "$name:transformer_jax.tgz" "${where[@]}" --worker=all
  on all 'mkdir -p transformer_jax && tar -xzf transformer_jax.tgz -C transformer_jax && transformer_jax/launch/setup_venv.sh tpu'
}
run() {
  [[ $# -gt 0 ]] || fail "run: which command?"
  local quoted
  quoted=$(printf '%q ' "$@")
  # The installed python comes first in PATH. `status` reads the exit code from the file.
  on all "cd transformer_jax && rm -f ~/exit_code && PATH=\$PWD/.venv/bin:\$PATH nohup setsid bash -c 'launch/until_done.sh ${quoted//\'/\'\\\'\'}; echo \$? > ~/exit_code' > ~/log 2>&1 < /dev/null & sleep 1"
}
delete() {
  do_ gcloud compute tpus queued-resources delete "$name" "${where[@]}" --force
}
status() {
  if [[ $dry ]]; then
    do_ gcloud compute tpus queued-resources describe "$name" "${where[@]}" --format='value(state.state)'
    on 0 'cat ~/exit_code'
  else
    now=$(state)
    echo "${now:-gone} $([[ $now == ACTIVE ]] && on 0 'cat ~/exit_code 2>/dev/null || true')"
  fi
}
keep() {
  [[ $# -gt 0 ]] || fail "keep: which command?"
  # Once: each slice gets the same code, whatever is edited meanwhile.
  pack
  if [[ $dry ]]; then
    create; install; run "$@"; status; delete
    return
  fi
  while :; do
    [[ $(state) == ACTIVE ]] || { [[ -z $(state) ]] || delete; create || continue; }
    if ! { install && run "$@"; }; then
      sleep "${EVERY:-60}"
      continue
    fi
    while read -r now code < <(status); [[ $now == ACTIVE && -z $code ]]; do sleep "${EVERY:-60}"; done
    if [[ -n ${code:-} ]]; then
      echo "${0##*/}: the command ended with $code; $name still exists (delete $name)" >&2
      exit "$code"
    fi
    echo "${0##*/}: $name was taken away ($now); asking for another" >&2
  done
}

work=$(mktemp -d -t transformer_jax.XXXXXX)
trap 'rm -rf "$work"' EXIT

case $step in
  keep | create | run | status | delete) "$step" "$@" ;;
  install) pack; install ;;
  logs) on 0 'tail -n 100 -F ~/log' ;;
  fetch)
    [[ $# -eq 2 ]] || fail "fetch NAME FROM TO"
    do_ gcloud compute tpus tpu-vm scp --recurse "$name:$1" "$2" "${where[@]}" --worker=0
    ;;
  *) fail "no step $step" ;;
esac
