#!/usr/bin/env bash
# Sets up the virtual environment .venv of this repository and prints the path of its interpreter:
#
#   python=$(launch/setup_venv.sh)                   the package
#   python=$(launch/setup_venv.sh test)              the package and its extra `test`
#   python=$(launch/setup_venv.sh test --jax=0.11.2) the same in .venv-jax-0.11.2, with that release
#
# Creates the environment if it is missing, and installs if setup.py has changed. PYTHON names the
# interpreter to create it with (default: the first one on the path that is 3.11 or newer and can
# have that release of jax). If none is newer than 3.10, as on the images of TPU VMs, uv from PyPI
# (https://docs.astral.sh/uv) installs one in .python; the system's interpreter stays as it is.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
extra=
release=
for argument in "$@"; do
  case $argument in
    --jax=*) release=${argument#--jax=} ;;
    *) extra=$argument ;;
  esac
done
venv=$root/.venv${release:+-jax-$release}
python=$venv/bin/python
# Of the releases that setup.py accepts, 0.10.1 is the fastest that is right on a CPU
# (docs/determinism.md). A jax that is installed already stays.
jax=jax==${release:-0.10.1}
log=$venv/pip.log

# shellcheck source=launch/each_minute.sh
source "$root/launch/each_minute.sh"
say() { echo "${0##*/}: $*" >&2; }
recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }
has_jax() { "$python" -c 'import importlib.metadata as m; m.version("jax")' >/dev/null 2>&1; }
# The newest line of pip's log, such as "Downloading jaxlib-0.10.1-...whl (81.9 MB)".
describe() {
  local found installed=("$venv"/lib/python*/site-packages/*.dist-info)
  found=$(grep -c '^Collecting' "$log")
  say "waiting for pip since $((SECONDS / 60)) min, $found packages found, ${#installed[@]} installed:" \
    "$(tail -n 1 "$log" | cut -c -200)"
}
pip() {
  "$python" -um pip install --progress-bar=off --disable-pip-version-check --no-input "$@" >"$log" 2>&1
}
install() {
  : >"$log"
  each_minute describe pip "$@"
}

# Creates the environment with the interpreter $1, and installs jax in it.
create() {
  local version error
  version=$("$1" --version)
  [[ $tried != *"$version;"* ]] || return 1
  tried+="$version;"
  say "creating $venv with $version and $jax"
  if ! error=$("$1" -m venv --clear "$venv" 2>&1); then
    say "$1 -m venv failed: $error"
    exit 2
  fi
  install "$jax" && return
  say "$version: $(tail -n 1 "$log")"
  rm -rf "$venv"
  return 1
}
# Prints the path of a Python that uv has installed in .python. Needs an older Python with pip.
new_python() {
  # jax 0.11 and newer have no wheels for 3.11.
  local version=3.11 error
  [[ -z $release ]] || version=3.13
  export UV_PYTHON_INSTALL_DIR=$root/.python
  say "no Python is 3.11 or newer here; installing $version in $root/.python"
  # With --target, pip touches nothing of the system's Python, and needs no rights for it.
  if ! error=$(python3 -m pip install --quiet --disable-pip-version-check --no-input --upgrade --target "$root/.python/uv" 'uv>=0.8,<1' 2>&1 &&
    "$root/.python/uv/bin/uv" python install --no-progress "$version" 2>&1); then
    say "uv could not install it: $(tail -n 1 <<<"$error")"
    return 1
  fi
  "$root/.python/uv/bin/uv" python find --no-project "$version"
}

ready=
tried=
if recent "$python" && "$python" -m pip --version >/dev/null 2>&1; then
  if has_jax || install "$jax"; then ready=1; fi
else
  for candidate in ${PYTHON:+"$PYTHON"} ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
    if recent "$candidate" && create "$candidate"; then
      ready=1
      break
    fi
  done
  if [[ -z $tried && -z ${PYTHON:-} ]] && candidate=$(new_python) && create "$candidate"; then ready=1; fi
  if [[ -z $tried ]]; then
    say "needs Python 3.11 or newer${PYTHON:+, which PYTHON=$PYTHON is not}; PYTHON=/path/to/python names one"
    exit 2
  fi
fi
if [[ -z $ready ]]; then
  say "$jax could not be installed; PYTHON=/path/to/python names another Python, which may have it"
  exit 2
fi

# Describes the installation: folder, setup.py and interpreter.
stamp="$root $(cksum <"$root/setup.py") $("$python" --version)"
if [[ $(cat "$venv/.installed-${extra:-base}" 2>/dev/null) != "$stamp" ]]; then
  say "installing transformer_jax${extra:+[$extra]} into $venv, a few minutes the first time"
  if ! install --use-pep517 -e "$root${extra:+[$extra]}" ${release:+"$jax"}; then
    tail -n 20 "$log" >&2
    say "pip failed; all of its output is in $log"
    exit 1
  fi
  for name in base ${extra:+"$extra"}; do
    echo "$stamp" >"$venv/.installed-$name"
  done
fi
echo "$python"
