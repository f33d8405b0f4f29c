#!/usr/bin/env bash
# Sets up the virtual environment .venv of this repository and prints the path of its interpreter:
#
#   python=$(launch/setup_venv.sh)          the package
#   python=$(launch/setup_venv.sh test)     the package and its extra `test`
#
# Creates .venv if it is missing, and installs if setup.py has changed. PYTHON names the interpreter
# to create it with (default: the first one on the path that is 3.11 or newer).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
extra=${1:-}
venv=$root/.venv
python=$venv/bin/python

# shellcheck source=launch/each_minute.sh
source "$root/launch/each_minute.sh"
say() { echo "${0##*/}: $*" >&2; }
recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

if ! { recent "$python" && "$python" -m pip --version >/dev/null 2>&1; }; then
  base=
  for candidate in ${PYTHON:+"$PYTHON"} ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
    if recent "$candidate"; then
      base=$candidate
      break
    fi
  done
  if [[ -z $base ]]; then
    say "needs Python 3.11 or newer${PYTHON:+, which PYTHON=$PYTHON is not}; PYTHON=/path/to/python names one"
    exit 2
  fi
  say "creating $venv with $("$base" --version)"
  if ! error=$("$base" -m venv --clear "$venv" 2>&1); then
    say "$base -m venv failed: $error"
    exit 2
  fi
fi

# Describes the installation: folder, setup.py and interpreter.
stamp="$root $(cksum <"$root/setup.py") $("$python" --version)"
if [[ $(cat "$venv/.installed-${extra:-base}" 2>/dev/null) != "$stamp" ]]; then
  say "installing transformer_jax${extra:+[$extra]} into $venv, a few minutes the first time"
  log=$venv/pip.log
  : >"$log"
  # The newest line of pip's log, such as "Downloading jaxlib-0.10.1-...whl (81.9 MB)".
  describe() {
    local found installed=("$venv"/lib/python*/site-packages/*.dist-info)
    found=$(grep -c '^Collecting' "$log")
    say "waiting for pip since $((SECONDS / 60)) min, $found packages found, ${#installed[@]} installed:" \
      "$(tail -n 1 "$log" | cut -c -200)"
  }
  install() {
    "$python" -um pip install --progress-bar=off --disable-pip-version-check --no-input \
      --use-pep517 -e "$root${extra:+[$extra]}" >"$log" 2>&1
  }
  if ! each_minute describe install; then
    tail -n 20 "$log" >&2
    say "pip failed; all of its output is in $log"
    exit 1
  fi
  for name in base ${extra:+"$extra"}; do
    echo "$stamp" >"$venv/.installed-$name"
  done
fi
echo "$python"
