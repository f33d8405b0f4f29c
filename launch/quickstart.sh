#!/usr/bin/env bash
# Sets up .venv if needed, trains a small model on built-in data, and shows its results:
#
#   launch/quickstart.sh            # translation, on the built-in English-German grammar
#   launch/quickstart.sh gpt        # a language model, on the sources of Python's standard library
#   launch/quickstart.sh bert       # an encoder, on the documentation strings of the same
#   launch/quickstart.sh summarise  # an encoder-decoder, which summarises functions of the same
#
# It takes minutes on a laptop's CPU and downloads packages only. The run is in runs/quickstart,
# runs/quickstart_gpt, runs/quickstart_bert or runs/quickstart_summarise, or in the folder $2.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
family=${1:-wmt}
case $family in
  wmt) run=${2:-runs/quickstart} ;;
  gpt) run=${2:-runs/quickstart_gpt} ;;
  bert) run=${2:-runs/quickstart_bert} ;;
  summarise) run=${2:-runs/quickstart_summarise} extra=summaries ;;
  *) echo "quickstart.sh: no family $family; there are: wmt, gpt, bert, summarise" >&2; exit 2 ;;
esac
python=$(bash "$root/launch/setup_venv.sh" ${extra:-})
cd "$root"
# shellcheck source=launch/each_minute.sh
source launch/each_minute.sh
tool() { "$python" -m "transformer_jax.$1" --workdir="$run" "${@:2}"; }

# Runs a program without its messages, some of which are not for this page.
quiet() {
  program=$1
  each_minute describe muted "$@"
}
muted() { tool "$@" 2> /dev/null; }
describe() { echo "quickstart.sh: waiting for $program"; }

train_summarise() {
  config=configs/bart/functions.py
  "$python" -m transformer_jax.train --config=$config:pretrain --workdir="$run/pretrained"
  echo "fine-tuning" >&2
  tool finetune --config=$config:summarise --config.init_from="$run/pretrained"
  echo "training the same model without the pre-training" >&2
  "$python" -m transformer_jax.finetune --config=$config:summarise --workdir="$run/anew" \
    --config.init_from="$run/pretrained" --config.train.pretrained=false
}

if [[ $family == summarise ]]; then
  train_summarise
else
  tool "train_$family" --config="configs/$family/quickstart.py"
fi

show_wmt() {
  echo "evaluating on 1,000 held-out sentences" >&2
  scores=$(tool evaluate --set=test | "$python" -c '
import json, sys
scores = json.load(sys.stdin)
print("sacreBLEU {bleu:.1f} ({bleu_signature}), chrF {chrf:.1f}".format(**scores))')

  "$python" - "$run" <<'PY'
import pathlib
import sys

from transformer_jax.corpora import grammar

english, german = zip(*grammar.pairs(0, "test", 10))
run = pathlib.Path(sys.argv[1])
(run / "examples.en").write_text("\n".join(english) + "\n", encoding="utf-8")
(run / "examples.de").write_text("\n".join(german) + "\n", encoding="utf-8")
PY
  quiet translate --attention="$run/attention.png" < "$run/examples.en" > "$run/examples.out"

  echo
  echo "Ten held-out sentences: the English, the model's German, and the reference where it differs"
  paste -d '\t' "$run/examples.en" "$run/examples.out" "$run/examples.de" |
    while IFS=$'\t' read -r english output german; do
      printf '\n  %s\n  %s\n' "$english" "$output"
      [[ $output == "$german" ]] || printf '  (%s)\n' "$german"
    done

  cat <<MESSAGE

Test set:               $scores
Learning curves:        $run/curves.png
Attention picture:      $run/attention.png

What to try next
  echo "Can you help me to translate this sentence?" | $python -m transformer_jax.translate --workdir=$run
  $python -m transformer_jax.train_wmt --config=configs/wmt/quickstart.py --workdir=$run --config.train.num_steps=3000    # go on
  $python -m transformer_jax.train_wmt --config=configs/wmt/multi30k.py --workdir=runs/mine \\
      --config.data.train_source=FILE --config.data.train_target=FILE --config.data.valid_source=FILE --config.data.valid_target=FILE
  $python -m transformer_jax.draw coreference --workdir=$run --output=$run/it.png    # what "it" attends to, head by head
  $python -m transformer_jax.dry_run --config=configs/wmt/big.py --devices=8
  launch/quickstart.sh gpt
MESSAGE
}

show_gpt() {
  echo "evaluating on held-out files" >&2
  scores=$(quiet evaluate --set=test | "$python" -c '
import json, sys
scores = json.load(sys.stdin)
print("{bits_per_byte:.2f} bits per byte, perplexity {perplexity:.1f} per token "
      "({bytes:,} bytes, windows of {length} that slide by {stride})".format(**scores))')

  for prompt in "def " "class " "import "; do
    echo
    quiet generate --prompt="$prompt" --max_tokens=100 --temperature=0.7 --top_p=0.95
    echo "--------"
  done

  cat <<MESSAGE

Test set:               $scores
Learning curves:        $run/curves.png

What to try next
  $python -m transformer_jax.generate --workdir=$run --prompt="    def __init__(self" --max_tokens=200 --temperature=0.5
  $python -m transformer_jax.train_gpt --config=configs/gpt/quickstart.py --workdir=runs/mine --config.data.corpus= \\
      --config.data.train_files='FILE,FILE' --config.data.valid_files=FILE
  $python -m transformer_jax.dry_run --config=configs/gpt/gpt3.py:175b --devices=8 --config.mesh.tensor=8
  launch/quickstart.sh bert
MESSAGE
}

show_bert() {
  echo "evaluating on held-out documents" >&2
  scores=$(quiet evaluate --set=test | "$python" -c '
import json, sys
scores = json.load(sys.stdin)
print("{accuracy:.1%} of {masked:,} masked tokens are found "
      "(always predicting the most frequent one: {most_frequent:.1%});\n"
      "                        {nsp_accuracy:.1%} of {rows:,} pairs are classified correctly"
      .format(**scores))')

  texts=("Return the [MASK] of the list." "The [MASK] argument is optional and [MASK] to None." "See the [MASK] for more [MASK].")
  printf '%s\n' "${texts[@]}" | quiet fill_mask > "$run/filled.txt"
  exec 3< "$run/filled.txt"
  for text in "${texts[@]}"; do
    printf '\n  %s\n' "$text"
    while read -r _; do
      IFS= read -r filled <&3
      echo "    $filled"
    done < <(grep -o '\[MASK\]' <<< "$text")
  done

  cat <<MESSAGE

Test set:               $scores
Learning curves:        $run/curves.png

What to try next
  $python -m transformer_jax.fill_mask --workdir=$run --text="Raise an [MASK] if the argument is not a [MASK]."
  echo "Open the file." | $python -m transformer_jax.features --workdir=$run --output=states.npz
  $python -m transformer_jax.train_bert --config=configs/bert/small.py:tiny --workdir=runs/mine \\
      --config.data.train_files='FILE,FILE' --config.data.valid_files=FILE
  $python -m transformer_jax.dry_run --config=configs/bert/large.py --devices=8
  launch/quickstart.sh summarise
MESSAGE
}

show_summarise() {
  echo "evaluating on held-out modules" >&2
  scores=$(quiet evaluate --set=test | "$python" -c '
import json, sys
scores = json.load(sys.stdin)
low, high = scores["intervals"]["rougeL"]
print("ROUGE-1 {rouge1:.1f}, ROUGE-2 {rouge2:.1f}, ROUGE-L {rougeL:.1f}".format(**scores),
      "(95 %: {:.1f} to {:.1f}); {examples} functions".format(low, high, **scores))
print(" " * 23, "name and parameters alone: ROUGE-L {rougeL:.1f}".format(**scores["lead"]))
print(" " * 23, "Python {python}, digest {functions:.8}".format(**scores["data"]))')
  against=$(quiet evaluate --set=test --against="$run/anew" | "$python" -c '
import json, sys
print("ROUGE-L {against:.1f}; difference {difference:.1f} (95 %: {interval[0]:.1f} to "
      "{interval[1]:.1f}), p = {p_value:.3f}".format(**json.load(sys.stdin)["scores"]["rougeL"]))')

  "$python" - "$run" <<'PY'
import pathlib
import sys

from transformer_jax.corpora.python_library import PythonFunctions

functions = list(PythonFunctions("test"))
sources, summaries = zip(*functions[:: len(functions) // 10][:10])
run = pathlib.Path(sys.argv[1])
(run / "examples.py.txt").write_text("\n".join(sources) + "\n", encoding="utf-8")
(run / "examples.reference").write_text("\n".join(summaries) + "\n", encoding="utf-8")
PY
  quiet translate < "$run/examples.py.txt" > "$run/examples.out"

  echo
  echo "Ten held-out functions: the beginning of the source, the model's summary, and the reference"
  paste -d '\t' "$run/examples.py.txt" "$run/examples.out" "$run/examples.reference" |
    while IFS=$'\t' read -r source output reference; do
      printf '\n  %.96s\n  %s\n  (%s)\n' "$source" "$output" "$reference"
    done

  cat <<MESSAGE

Test set:               $scores
Without pre-training:   $against
Learning curves:        $run/curves.png

What to try next
  echo "def read_lines(path): with open(path) as file: return file.readlines()" |
      $python -m transformer_jax.translate --workdir=$run --n_best=3
  $python -m transformer_jax.finetune --config=configs/bart/functions.py:summarise --workdir=runs/mine \\
      --config.init_from=$run/pretrained --config.data.corpus= --config.data.train_files=FILE.tsv --config.data.valid_files=FILE.tsv
  launch/quickstart.sh
MESSAGE
}

"show_$family"
