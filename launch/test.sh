#!/usr/bin/env bash
# Sets up .venv where needed and runs the tests, on the CPU; arguments go to pytest, paths from the repository's root.
# Where they name none, all tests run, on all cores:
#
#   launch/test.sh
#   launch/test.sh --durations=20
#   launch/test.sh tests/layers -k mask
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$(bash "$root/launch/setup_venv.sh" test)
cd "$root"
all=1
for argument in "$@"; do [[ $argument != tests* ]] || all=; done
[[ -z $all ]] || set -- tests -n auto --maxprocesses=8 --dist=loadfile --max-worker-restart=0 "$@" # a file's tests share what is dear to make; a worker that has died fails the suite: replaced, xdist 3.8 waits for ever
echo "test.sh: $python -m pytest $*" >&2
JAX_PLATFORMS=cpu exec "$python" -m pytest "$@"
