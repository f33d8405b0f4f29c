#!/usr/bin/env bash
# Runs a training again each time it was preempted (exit code 75), until it is done or fails; told to stop itself (SIGTERM), it passes that on and ends with 75:
#
#   launch/until_done.sh python -m transformer_jax.train_gpt --config=FILE --workdir=DIR
set -uo pipefail

[[ $# -gt 0 ]] || { echo "usage: ${0##*/} COMMAND..." >&2; exit 2; }
stopped= run=
trap 'stopped=1; [[ -z $run ]] || kill -TERM "$run" 2>/dev/null' TERM
while :; do
  "$@" &
  run=$!
  [[ -z $stopped ]] || kill -TERM "$run" # told as it began
  while :; do # a trapped signal ends `wait` before the command has ended
    wait "$run"
    kill -0 "$run" 2>/dev/null || break
  done
  wait "$run" # once more, for its own code: the last may have been cut short
  code=$?
  [[ $code -eq 75 && -z $stopped ]] || exit "$code"
  echo "${0##*/}: preempted, going on" >&2
done
