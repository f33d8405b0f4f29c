#!/usr/bin/env bash
# Runs a training as N processes of this machine, as if each were a host of its own:
#
#   launch/local_multihost.sh 2 python -m transformer_jax.train_gpt --config=configs/gpt/quickstart.py --workdir=DIR
#
# DEVICES (default 1) virtual CPU devices each, joined by gloo; PORT (default a free one) is process 0's. Each line of output begins with the
# number of its process. SIGTERM and Ctrl-C go to all. Exits as the first process that failed, or 75 if they were preempted.
set -euo pipefail
# Each process is a group of its own, so that a terminal's Ctrl-C comes to it from here alone.
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
# outlives the process, whatever signals come
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
  while :; do # a trapped signal ends `wait` before the process has ended
    wait "$pid" && one=0 || one=$?
    kill -0 "$pid" 2>/dev/null || break
  done
  if [[ $code -eq 0 || $code -eq 75 ]] && [[ $one -ne 0 ]]; then code=$one; fi
done
exit "$code"
