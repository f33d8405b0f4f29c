#!/usr/bin/env bash
# Prepares a TFDS translation set once, so that training reads it without TensorFlow:
#
#   launch/prepare_tfds.sh wmt14_translate/de-en ~/tfds
#
# Needs the `tfds` extra (pip install -e '.[tfds]') and the network. A set that exists is not
# prepared again. Prints the flags for the trainer. PYTHON names the interpreter (default: python).
set -euo pipefail

if [[ $# -ne 2 || $1 == -* || -z $1 || -z $2 ]]; then
  echo "usage: $0 NAME DIR    e.g. $0 wmt14_translate/de-en ~/tfds" >&2
  exit 2
fi
name=$1
python=${PYTHON:-python}

if ! error=$("$python" -c 'import tensorflow, tensorflow_datasets, importlib_resources' 2>&1); then
  echo "$0: $python lacks the tfds extra, pip install -e '.[tfds]' (${error##*$'\n'})" >&2
  exit 2
fi
mkdir -p "$2"
dir=$(cd "$2" && pwd)

# The same as `tfds build NAME --data_dir=DIR --file_format=array_record`, but without Apache Beam.
"$python" - "$name" "$dir" >&2 <<'END'
import sys

import tensorflow_datasets as tfds

name, folder = sys.argv[1:]
tfds.builder(name, data_dir=folder, file_format="array_record").download_and_prepare()
END

echo "--config.data.tfds_name=${name/://} --config.data.tfds_dir=$dir"
