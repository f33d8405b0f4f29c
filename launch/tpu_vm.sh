#!/usr/bin/env bash
# Runs a training on a Cloud TPU slice, with gcloud
# (https://cloud.google.com/tpu/docs/queued-resources):
#
#   export ZONE=us-west4-a TYPE=v5litepod-16 SPOT=1
#   launch/tpu_vm.sh keep NAME python -m transformer_jax.train_gpt \
#       --config=configs/gpt/gpt2.py:124m --workdir=gs://BUCKET/gpt2 \
#       --config.data.train_files='gs://BUCKET/text/train/*.txt' \
#       --config.data.valid_files='gs://BUCKET/text/valid/*.txt' --config.data.cache=gs://BUCKET/cache
#
# `keep` creates the slice, installs the package and starts the command on all workers. If the slice
# is taken away, it creates another one. If a worker is rebooted, as for maintenance, it starts the
# command again. It ends
#
#   - with the exit code of the command, when that has ended on all workers
#   - with 1, when a request for a slice is refused or fails, when the installation fails three
#     times, when ten slices or starts in a row are lost within an hour each, or when the slice
#     gives no answer to thirty checks
#
# A slice costs money until it is deleted. If `keep` ends with a slice left, it prints the line that
# deletes it, unless it gives up on a slice that it has created itself, which it deletes. The single
# steps:
#
#   create NAME            requests the slice and waits until it is active
#   install NAME           copies the commit of this checkout to all workers and installs it
#   run NAME COMMAND...    starts the command on all workers, independent of this machine
#   logs NAME              follows the output of worker 0
#   status NAME            prints the slice's state, and the command's exit code when it has ended
#   send NAME FROM TO      copies a file or folder to all workers
#   fetch NAME FROM TO     copies a folder from worker 0; for a bucket, use gcloud storage cp
#   delete NAME            deletes the slice
#
# --print, before the step, prints the commands without running them. ZONE and TYPE are required.
# Optional: PROJECT, SPOT=1, RUNTIME (the VM's software, default by TYPE), EVERY (seconds between
# two checks of the slice, default 60), DELETE=1 (`keep` deletes the slice when the command has ended
# with 0), SHIP_CHANGES=1 (copies the changes that are not committed and the new files, too; without
# it, a checkout with changes is refused).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
say() { echo "${0##*/}: $*" >&2; }
fail() { say "$@"; exit 2; }

dry=
[[ ${1:-} == --print ]] && { dry=1; shift; }
[[ $# -ge 2 ]] || fail "usage: ${0##*/} [--print] keep|create|install|run|logs|status|send|fetch|delete NAME ..."
step=$1 name=$2
shift 2
: "${ZONE:?tpu_vm.sh: ZONE is missing, e.g. ZONE=us-west4-a}" "${TYPE:?tpu_vm.sh: TYPE is missing, e.g. TYPE=v5litepod-16}"
case $TYPE in
  v5litepod-*) runtime=v2-alpha-tpuv5-lite ;;
  v5p-*) runtime=v2-alpha-tpuv5 ;;
  v6e-*) runtime=v2-alpha-tpuv6e ;;
  *) runtime=tpu-ubuntu2204-base ;;
esac
[[ $dry ]] || command -v gcloud >/dev/null || fail "gcloud is not installed (https://cloud.google.com/sdk/docs/install)"
where=(--zone="$ZONE" ${PROJECT:+--project="$PROJECT"} --quiet)
# The limits of `keep`. Without them, a mistake would repeat itself on a paid slice.
installs=3 losses=10 silent=30 long=3600

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
copy() { # copy FROM TO WORKER
  do_ gcloud compute tpus tpu-vm scp --recurse "$1" "$2" "${where[@]}" --worker="$3"
}
wait_() { sleep "${EVERY:-60}"; }

# Prints ACTIVE, WAITING_FOR_RESOURCES, SUSPENDED, ...; GONE without such a slice; or UNKNOWN if
# gcloud can't tell, as without a network.
state() {
  local answer
  if answer=$(gcloud compute tpus queued-resources describe "$name" "${where[@]}" --format='value(state.state)' 2>"$work/error") && [[ $answer ]]; then
    echo "$answer"
  elif grep -q NOT_FOUND "$work/error"; then
    echo GONE
  else
    tail -n 1 "$work/error" >&2
    echo UNKNOWN
  fi
}
unanswered=0
# Waits until the next check, after one without an answer. Ends after too many of them in a row.
no_answer() {
  ((++unanswered < silent)) || { say "$name has given no answer to $silent checks"; remains; exit 1; }
  wait_
}
request() {
  do_ gcloud compute tpus queued-resources create "$name" --node-id="$name" "${where[@]}" --accelerator-type="$TYPE" --runtime-version="${RUNTIME:-$runtime}" ${SPOT:+--spot} && return
  say "the request for $name was refused; gcloud gives the reason above"
  return 1
}
# Waits until the slice is active, which may take long and costs nothing. Returns 1 if the request
# has failed, and 3 if the slice has been taken away.
await() {
  local now
  while now=$(state); [[ $now != ACTIVE ]]; do
    case $now in
      UNKNOWN) no_answer; continue ;;
      GONE | SUSPENDED | SUSPENDING | DELETING) say "$name is $now"; return 3 ;;
      FAILED)
        say "the request for $name has failed:"
        gcloud compute tpus queued-resources describe "$name" "${where[@]}" --format='yaml(state)' >&2 || true
        return 1
        ;;
    esac
    unanswered=0
    say "$name is $now"
    wait_
  done
}
create() {
  request || exit 1
  [[ ! $dry ]] || return 0
  await || { remains; exit 1; }
}
pack() { # packs this checkout into $work/transformer_jax.tgz
  local changes tree=HEAD
  changes=$(git -C "$here" status --porcelain --untracked-files=normal)
  if [[ $changes ]]; then
    echo "$changes" >&2
    [[ ${SHIP_CHANGES:-} ]] ||
      fail "$here has changes that are not committed; commit them, or set SHIP_CHANGES=1 to ship them"
    say "ships these changes, too"
    # An index of its own leaves the user's as it is.
    tree=$(GIT_INDEX_FILE=$work/index bash -c 'git -C "$1" read-tree HEAD && git -C "$1" add --all && git -C "$1" write-tree' - "$here")
  fi
  do_ git -C "$here" archive --format=tar.gz --output="$work/transformer_jax.tgz" "$tree"
}
# The images of TPU VMs have Python 3.10 alone, so setup_venv.sh installs a newer one there.
install() {
  copy "$work/transformer_jax.tgz" "$name:transformer_jax.tgz" all &&
    on all 'mkdir -p transformer_jax && tar -xzf transformer_jax.tgz -C transformer_jax && transformer_jax/launch/setup_venv.sh tpu'
}
run() {
  [[ $# -gt 0 ]] || fail "run: which command?"
  on all "transformer_jax/launch/worker.sh start $(printf '%q ' "$@")"
}
delete() {
  do_ gcloud compute tpus queued-resources delete "$name" "${where[@]}" --force
}
# Prints the exit code when the command has ended on all workers: 0, or else the largest one, because
# workers that others have stopped end with 1. Before that, prints `running`; `dead` if the command
# has vanished from a worker without an exit code; or `silent` if a worker gives no answer.
outcome() {
  local answers
  answers=$(on all 'transformer_jax/launch/worker.sh state' 2>"$work/error" | sort -n) || { tail -n 1 "$work/error" >&2; answers=silent; }
  case $answers in
    *dead*) echo dead ;;
    *running*) echo running ;;
    [0-9]*) tail -n 1 <<<"$answers" ;;
    *) echo silent ;;
  esac
}
status() {
  local now
  if [[ $dry ]]; then
    do_ gcloud compute tpus queued-resources describe "$name" "${where[@]}" --format='value(state.state)'
    on all 'transformer_jax/launch/worker.sh state'
  else
    now=$(state)
    echo "$now$([[ $now != ACTIVE ]] || echo " $(outcome)")"
  fi
}

remains() { # says how to delete the slice, if there is one
  [[ $(state) != GONE ]] || return 0
  say "$name still exists, and costs money until this deletes it:"
  say "  ${PROJECT:+PROJECT=$PROJECT }ZONE=$ZONE TYPE=$TYPE $here/launch/tpu_vm.sh delete $name"
}
give_up() { # give_up REASON: ends, and deletes a slice that `keep` has created
  say "$1"
  if [[ $own ]]; then
    say "deleting $name"
    delete || true
  fi
  remains
  exit 1
}
# Counts slices and starts that were lost. A loss after an hour is an accident, and does not count.
lose() { # lose REASON
  say "$1"
  ((SECONDS - started < long)) || lost=0
  started=$SECONDS
  ((++lost < losses)) || give_up "$losses slices or starts in a row were lost within an hour each"
}
keep() {
  [[ $# -gt 0 ]] || fail "keep: which command?"
  # Once: each slice gets the same code, whatever is edited meanwhile.
  pack
  if [[ $dry ]]; then
    create; install; run "$@"; status; delete
    return
  fi
  local now failed=0 lost=0 started=$SECONDS own=
  # A mistake such as a wrong zone is told at once, and not after the checks without an answer.
  [[ $(state) != UNKNOWN ]] || fail "gcloud can't describe $name, for the reason above"
  trap 'remains; exit 130' INT
  trap 'remains; exit 143' TERM
  while :; do
    # A slice.
    now=$(state)
    case $now in
      UNKNOWN) no_answer; continue ;;
      FAILED | SUSPENDED | SUSPENDING | DELETING) delete || { remains; exit 1; }; now=GONE ;;
    esac
    if [[ $now == GONE ]]; then
      request || { remains; exit 1; }
      own=1
    fi
    if [[ $now != ACTIVE ]]; then
      await || {
        (($? == 3)) || give_up "without a slice, the command can't start"
        lose "$name was taken away before it was used; asking for another"
        continue
      }
      started=$SECONDS
    fi
    # The package.
    if ! install; then
      if [[ $(state) == ACTIVE ]]; then
        ((++failed < installs)) || give_up "the installation has failed $installs times"
        say "the installation has failed; trying again"
        wait_
      else
        lose "$name was taken away during the installation; asking for another"
      fi
      continue
    fi
    failed=0
    follow "$@"
  done
}
# Starts the command, and again after a reboot. Returns when the slice has been taken away, and ends
# when the command has ended.
follow() {
  local now code started_here=
  while :; do
    [[ $started_here ]] || { run "$@" && started_here=1; } || true
    now=$(state)
    case $now in
      ACTIVE) code=$([[ $started_here ]] && outcome || echo silent) ;;
      UNKNOWN) code=silent ;;
      *) lose "$name was taken away ($now); asking for another"; return 0 ;;
    esac
    case $code in
      silent) no_answer ;;
      running) unanswered=0; wait_ ;;
      dead)
        lose "the command has vanished from a worker of $name, as in a reboot; starting it again"
        started_here=
        ;;
      *)
        say "the command has ended with $code"
        [[ $code != 0 || ! ${DELETE:-} ]] || delete || true
        remains
        exit "$code"
        ;;
    esac
  done
}

work=$(mktemp -d -t transformer_jax.XXXXXX)
trap 'rm -rf "$work"' EXIT

case $step in
  keep | create | run | status | delete) "$step" "$@" ;;
  install) pack; install ;;
  logs) on 0 'tail -n 100 -F ~/log' ;;
  send)
    [[ $# -eq 2 ]] || fail "send NAME FROM TO"
    [[ -e $1 ]] || fail "send: $1: no such file"
    copy "$1" "$name:$2" all
    ;;
  fetch)
    [[ $# -eq 2 ]] || fail "fetch NAME FROM TO"
    copy "$name:$1" "$2" 0
    ;;
  *) fail "no step $step" ;;
esac
