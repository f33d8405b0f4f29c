#!/usr/bin/env bash
# Sets up .venv where needed, trains a small English-German Transformer on the built-in grammar, and shows what it has learned.
# Minutes on a laptop's CPU; nothing is downloaded but the packages. The run is left in runs/quickstart (or in $1).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$(bash "$root/launch/setup_venv.sh")
cd "$root"
run=${1:-runs/quickstart}
tool() { "$python" -m "transformer_jax.$1" --workdir="$run" "${@:2}"; }

tool train_wmt --config=configs/wmt/quickstart.py

echo "evaluating on 1,000 held-out sentences" >&2
scores=$(tool evaluate --set=test | "$python" -c '
import json, sys
found = json.load(sys.stdin)
print("sacreBLEU {bleu:.1f} ({bleu_signature}), chrF {chrf:.1f}".format(**found))')

"$python" - "$run" <<'PY'
import pathlib
import sys

from transformer_jax.data import grammar

english, german = zip(*grammar.pairs(0, "test", 10))
run = pathlib.Path(sys.argv[1])
(run / "examples.en").write_text("\n".join(english) + "\n", encoding="utf-8")
(run / "examples.de").write_text("\n".join(german) + "\n", encoding="utf-8")
PY
tool translate --attention="$run/attention.png" < "$run/examples.en" > "$run/examples.out" 2> /dev/null

echo
echo "Ten held-out sentences: the English, the model's German, and the reference where it differs"
paste -d '\t' "$run/examples.en" "$run/examples.out" "$run/examples.de" |
  while IFS=$'\t' read -r english output german; do
    printf '\n  %s\n  %s\n' "$english" "$output"
    [[ $output == "$german" ]] || printf '  (%s)\n' "$german"
  done

cat <<EOF

Test set:               $scores
Learning curves:        $run/curves.png
Attention picture:      $run/attention.png

What to try next
  echo "Can you help me to translate this sentence?" | $python -m transformer_jax.translate --workdir=$run
  $python -m transformer_jax.train_wmt --config=configs/wmt/quickstart.py --workdir=$run --config.train.num_steps=3000    # go on
  $python -m transformer_jax.train_wmt --config=configs/wmt/multi30k.py --workdir=runs/mine \\
      --config.data.train_source=FILE --config.data.train_target=FILE --config.data.valid_source=FILE --config.data.valid_target=FILE
  $python -m transformer_jax.dry_run --config=configs/wmt/big.py --devices=8
EOF
