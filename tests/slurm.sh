#!/usr/bin/env bash
# Tests launch/slurm.sbatch under the Slurm of this machine:
#
#   tests/slurm.sh [PYTHON]
#
# A job trains with two processes. It gets the signal that precedes a time limit, is queued again,
# and finishes. This takes minutes, because Slurm delays a job that is queued again. The script
# prints a summary and exits with 0 if the job did all that.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${1:-$(bash "$root/launch/setup_venv.sh" test)}
folder=$(mktemp -d)
log=$folder/log
export JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=2 SRUN_OPTIONS=--overcommit
wait_for() { # waits for a line in the log, at most half an hour
  for _ in $(seq 1800); do
    grep -q "$1" "$log" 2> /dev/null && return
    sleep 1
  done
  echo "slurm.sh: no line '$1' in $log" >&2
  exit 1
}

job=$(sbatch --parsable --ntasks-per-node=2 --overcommit --chdir="$root" --output="$log" "$root/launch/slurm.sbatch" "$python" -m transformer_jax.train_gpt \
  --config=configs/gpt/shakespeare_char.py:cpu --workdir="$folder/run" --config.data.train_files=README.md --config.data.valid_files=README.md --config.data.cache="$folder/cache" \
  --config.model.d_model=64 --config.model.num_layers=2 --config.model.unroll=2 --config.task.length=64 --config.model.max_length=64 --config.task.sample_tokens=0 \
  --config.train.batch=16 --config.train.num_steps=400 --config.train.log_every=10 --config.train.eval_every=400 --config.checkpoint.every=400)
wait_for '^step 50/400'
scancel --signal=TERM --batch "$job"
wait_for 'preempted, queued again'
wait_for '^step 400  valid/'
wait_for_end() { while squeue -h -j "$job" 2> /dev/null | grep -q .; do sleep 1; done; }
wait_for_end

echo "job $job:"
grep -E 'process . of 2|stopped at step|queued again|resuming from|^step (10|50|400)[/ ]' "$log" | cut -c1-120
steps=$("$python" -c 'import json, sys; print([line["step"] for line in map(json.loads, open(sys.argv[1])) if "train/loss" in line] == list(range(10, 401, 10)))' "$folder/run/metrics.jsonl")
echo "every line of metrics.jsonl once: $steps"
[[ $steps == True ]]
