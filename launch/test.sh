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
# A file's tests share what is dear to make. A worker that dies fails the suite: where it is replaced, xdist 3.8 may wait for ever
[[ -z $all ]] || set -- tests -n auto --maxprocesses=8 --dist=loadfile --max-worker-restart=0 "$@"
echo "test.sh: $python -m pytest $*" >&2
JAX_PLATFORMS=cpu exec "$python" -m pytest "$@"
