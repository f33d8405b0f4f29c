#!/usr/bin/env bash
# Sets up .venv where needed and runs the tests on the CPU:
#
#   launch/test.sh                        the suite: 8 to 12 minutes on 2 cores, fewer with cached programs
#   launch/test.sh --quick                the tests that a change touches, for about 3 minutes
#   launch/test.sh --full                 all tests, for an hour or more; names those that lack a package
#   launch/test.sh --changed              those of --full that a change touches, for about 12 minutes
#   launch/test.sh --hardware             the programs for TPUs and GPUs, with their compilers
#   launch/test.sh --jax=0.12.0.1 ...     any of these with that release of jax (in a venv of its own)
#   launch/test.sh --durations=20         other arguments go to pytest
#   launch/test.sh tests/layers -k mask   paths are relative to the repository's root
#
# --quick and --changed select tests by the files changed since the branch left origin/main, or else
# on the last day, and by those not committed (tests/select_quick.py). Tests that would start after
# 150 and 660 seconds are skipped and named at the end.
set -euo pipefail

if [[ ${1:-} == --help ]]; then
  sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  exit
fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
jax=
if [[ ${1:-} == --jax=* ]]; then
  jax=$1
  shift
fi
python=$(bash "$root/launch/setup_venv.sh" test $jax)
cd "$root"

# The tests of a file share programs that take long to compile, so one worker gets the whole file.
# A worker that dies fails the suite: xdist 3.8 may wait forever when it replaces one.
# The files start in the order of the tests (tests/conftest.py), the longest first.
parallel=(-n auto --maxprocesses=8 --dist=loadfile --no-loadscope-reorder --max-worker-restart=0)
select_tests() {
  local selected
  selected=$("$python" tests/select_quick.py)
  mapfile -t tests <<< "$selected"
}
if [[ ${1:-} == --hardware ]]; then
  shift
  for extra in gpu tpu; do bash "$root/launch/setup_venv.sh" $extra $jax >/dev/null; done
  export TEST_OPTIMIZED=1 # as users compile
  set -- tests/planning/test_hardware.py tests/planning/test_gpu.py tests/planning/test_tpu.py --full "$@"
elif [[ ${1:-} == --quick ]]; then
  shift
  select_tests
  set -- "${tests[@]}" "${parallel[@]}" --seconds=150 "$@"
elif [[ ${1:-} == --changed ]]; then
  shift
  select_tests
  set -- "${tests[@]}" "${parallel[@]}" --full -m "full or hardware" --seconds=660 "$@"
else
  all=1
  for argument in "$@"; do [[ $argument != tests* ]] || all=; done
  [[ -z $all ]] || set -- tests "${parallel[@]}" "$@"
fi
echo "test.sh: $python -m pytest $*" >&2
JAX_PLATFORMS=cpu exec "$python" -m pytest "$@"
