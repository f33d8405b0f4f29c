#!/usr/bin/env bash
# Prepares a TFDS set once, so that training reads it without TensorFlow:
#
#   launch/prepare_tfds.sh wmt14_translate/de-en ~/tfds
#   launch/prepare_tfds.sh wmt14_translate/de-en gs://BUCKET/tfds
#
# Needs the `tfds` extra (pip install -e '.[tfds]') and the network. A set that exists is not
# prepared again. array_record files can be written to disks only, so a set for a bucket is prepared
# in ~/.cache/transformer_jax/tfds first, or in $TFDS_LOCAL, where the copy may be deleted afterwards.
# Prints the flags for the trainer. PYTHON names the interpreter (default: python).
set -euo pipefail

if [[ $# -ne 2 || $1 == -* || -z $1 || -z $2 ]]; then
  echo "usage: $0 NAME DIR    e.g. $0 wmt14_translate/de-en ~/tfds    or gs://BUCKET/tfds" >&2
  exit 2
fi
name=$1 target=$2 local=$2
python=${PYTHON:-python}

if ! error=$("$python" -c 'import tensorflow, tensorflow_datasets, importlib_resources' 2>&1); then
  echo "$0: $python lacks the tfds extra, pip install -e '.[tfds]' (${error##*$'\n'})" >&2
  exit 2
fi
[[ $target != *://* ]] || local=${TFDS_LOCAL:-$HOME/.cache/transformer_jax/tfds}
mkdir -p "$local"
local=$(cd "$local" && pwd)
[[ $target == *://* ]] || target=$local

# The same as `tfds build NAME --data_dir=DIR --file_format=array_record`, but without Apache Beam.
"$python" - "$name" "$local" "$target" >&2 <<'END'
import pathlib
import sys

import tensorflow_datasets as tfds

from transformer_jax.config import UserError
from transformer_jax.storage import buckets

name, folder, target = sys.argv[1:]
try:
    if target != folder:
        # A bucket that refuses writes is reported before the set is prepared, which takes long.
        with buckets.writing(target):
            (buckets.path(target) / "writable").write_bytes(b"")
            (buckets.path(target) / "writable").unlink()
    builder = tfds.builder(name, data_dir=folder, file_format="array_record")
    builder.download_and_prepare()
    if target != folder:
        prepared = pathlib.Path(builder.data_dir)
        copy = buckets.path(target) / str(prepared.relative_to(folder))
        # dataset_info.json comes last, because a folder that has it counts as a prepared set.
        files = sorted(prepared.iterdir(), key=lambda file: file.name == "dataset_info.json")
        info = copy / "dataset_info.json"
        with buckets.writing(target):
            if not info.is_file() or info.read_bytes() != files[-1].read_bytes():
                for number, file in enumerate(files, 1):
                    print(f"copying {number} of {len(files)} to {copy / file.name}", flush=True)
                    (copy / file.name).write_bytes(file.read_bytes())
except UserError as error:
    print(f"prepare_tfds.sh: {error}")
    sys.exit(2)
END

echo "--config.data.tfds_name=${name/://} --config.data.tfds_dir=$target"
