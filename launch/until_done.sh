#!/usr/bin/env bash
# Runs a training again each time it was preempted (exit code 75), until it is done or fails.
# SIGTERM and Ctrl-C are passed on to it; it then ends with 75 or 130, and is not run again:
#
#   launch/until_done.sh python -m transformer_jax.train_gpt --config=FILE --workdir=DIR
set -uo pipefail
# The run is a process group of its own, so that a terminal's Ctrl-C comes to it from here alone.
set -m

[[ $# -gt 0 ]] || { echo "usage: ${0##*/} COMMAND..." >&2; exit 2; }
stopped= run=
# shellcheck disable=SC2317,SC2329  # called by the traps
stop() {
  stopped=$1
  [[ -z $run ]] || kill -s "$1" "$run" 2>/dev/null
}
trap 'stop TERM' TERM
trap 'stop INT' INT
while :; do
  "$@" &
  run=$!
  [[ -z $stopped ]] || kill -s "$stopped" "$run" # told as it began
  while :; do # a trapped signal ends `wait` before the command has ended
    wait "$run"
    kill -0 "$run" 2>/dev/null || break
  done
  wait "$run" # once more, for its own code: the last may have been cut short
  code=$?
  [[ $code -eq 75 && -z $stopped ]] || exit "$code"
  echo "${0##*/}: preempted, going on" >&2
done
