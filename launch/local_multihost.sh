#!/usr/bin/env bash
# Runs a training as N processes on this machine, as if each were a separate host:
#
#   launch/local_multihost.sh 2 python -m transformer_jax.train_gpt \
#       --config=configs/gpt/quickstart.py --workdir=DIR
#
# Each process has DEVICES virtual CPU devices (default 1), joined by gloo. PORT is the port of
# process 0 (default: a free one). Each line of output begins with the number of its process.
# SIGTERM and Ctrl-C go to all processes. The exit code is that of the first process that failed,
# or 75 if the run was preempted.
set -euo pipefail
# Each process has its own process group, so that Ctrl-C reaches it through this script only.
set -m

if [[ $# -lt 2 || ! $1 =~ ^[1-9][0-9]*$ ]]; then
  echo "usage: ${0##*/} N COMMAND..., N at least 1" >&2
  exit 2
fi
count=$1
shift
port=${PORT:-$(python3 -c 'import socket; s = socket.create_server(("", 0)); print(s.getsockname()[1])')}
export JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=${DEVICES:-1}

pids=()
# It ignores the signals, so that it prints all that the process writes.
label() { trap '' INT TERM && exec sed -u "s/^/[$1] /"; }
# shellcheck disable=SC2317  # called by the trap
forward() { kill -s "$1" "${pids[@]}" 2>/dev/null || true; }
trap 'forward TERM' TERM
trap 'forward INT' INT
for ((i = 0; i < count; i++)); do
  "$@" --coordinator="localhost:$port" --num_processes="$count" --process_id="$i" \
    > >(label "$i") 2> >(label "$i" >&2) &
  pids+=($!)
done

code=0
for pid in "${pids[@]}"; do
  while :; do # a trapped signal ends `wait` early
    wait "$pid" && one=0 || one=$?
    kill -0 "$pid" 2>/dev/null || break
  done
  if [[ $code -eq 0 || $code -eq 75 ]] && [[ $one -ne 0 ]]; then code=$one; fi
done
exit "$code"
