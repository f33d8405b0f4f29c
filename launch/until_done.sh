#!/usr/bin/env bash
# Repeats a training whenever it is preempted (exit code 75), until it is complete or fails:
#
#   launch/until_done.sh python -m transformer_jax.train_gpt --config=FILE --workdir=DIR
#
# SIGTERM and Ctrl-C are passed on to it. It then exits with 75 or 130 and is not repeated.
set -uo pipefail
# The run has its own process group, so a terminal's Ctrl-C reaches it through this script only.
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
  [[ -z $stopped ]] || kill -s "$stopped" "$run" # the signal came before the run started
  while :; do # a trapped signal ends `wait` early
    wait "$run"
    kill -0 "$run" 2>/dev/null || break
  done
  wait "$run" # once more for the exit code of the run, because a signal may have ended the last one
  code=$?
  [[ $code -eq 75 && -z $stopped ]] || exit "$code"
  echo "${0##*/}: preempted, going on" >&2
done
