"""The best learning rate by width, with muP and without, for a GPT and a Transformer.

python benchmarks/mup_transfer.py --case=gpt --text=DIR --workdir=DIR --json=FILE [--tiny]
python benchmarks/mup_transfer.py --case=transformer --workdir=DIR --json=FILE [--tiny]

Each case is one `scaling transfer`: widths of 64, 128, 256 and 512, six learning rates in steps of
2, three seeds, 120 updates with AdamW or Adam. The base of muP has a width of 64. The runs are
ordinary ones in --workdir, and the same command goes on after a stop.

- gpt: two layers of configs/gpt/quickstart.py, 8 rows of 64 tokens. --text has three sources of the
  BabyLM challenge, {simple_wiki,gutenberg,bnc_spoken}.txt, and their first 25,000 held-out bytes
  each in valid.txt.
- transformer: configs/wmt/quickstart.py with one layer in the encoder and in the decoder, 16 rows.

126 runs a case, which take about 40 minutes of a core.
"""

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys
from typing import TYPE_CHECKING

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from harness import machine

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATES = "1e-3,2e-3,4e-3,8e-3,16e-3,32e-3"
COMMON = {
    "train.num_steps": 120,
    "train.eval_every": 120,
    "train.log_every": 60,
    "checkpoint.every": 120,
    "checkpoint.keep": 1,
    "optimizer.warmup_steps": 24,
}
SOURCES = ("simple_wiki", "gutenberg", "bnc_spoken")
CASES = {
    "gpt": (
        "gpt/quickstart",
        {
            "data.corpus": "",
            "model.num_layers": 2,
            "model.unroll": 2,
            "model.num_heads": 4,
            "model.max_length": 64,
            "task.length": 64,
            "task.sample_tokens": 0,
        },
    ),
    "transformer": (
        "wmt/quickstart",
        {
            "model.num_encoder_layers": 1,
            "model.num_decoder_layers": 1,
            "model.unroll": 1,
            "train.batch": 16,
            "task.bleu_lines": 0,
        },
    ),
}
TINY = {"train.num_steps": 2, "train.eval_every": 2, "checkpoint.every": 2}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=list(CASES), required=True)
    for name in ("text", "workdir", "json"):
        parser.add_argument(f"--{name}", type=pathlib.Path)
    parser.add_argument("--tiny", action="store_true", help="two updates, widths of 64 and 128")
    arguments = parser.parse_args()
    config, keys = CASES[arguments.case]
    keys = COMMON | keys | {"data.cache": arguments.workdir / "cache"}
    if arguments.case == "gpt":
        files = (f"{arguments.text}/{source}.txt" for source in SOURCES)
        keys["data.train_files"] = ",".join(files)
        keys["data.valid_files"] = arguments.text / "valid.txt"
    keys |= TINY | {"optimizer.warmup_steps": 1} if arguments.tiny else {}
    widths = "64,128" if arguments.tiny else "64,128,256,512"
    command = [sys.executable, "-m", "transformer_jax.scaling", "transfer", f"--config={config}"]
    command += [f"--widths={widths}", f"--rates={RATES}", "--seeds=3"]
    command += [f"--workdir={arguments.workdir}"]
    command += [f"--config.{key}={value}" for key, value in keys.items()]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result = {
        "command": f"python benchmarks/mup_transfer.py --case={arguments.case} --workdir=DIR",
        "machine": machine(),
        "date": datetime.date.today().isoformat(),
        "rows": [{"case": arguments.case} | json.loads(done.stdout.splitlines()[-1])],
    }
    arguments.json.write_text(json.dumps(result, indent=1) + "\n")


def plot(rows: list[dict]) -> "Figure":
    """Returns a figure with a panel for each parametrization."""
    from transformer_jax.pictures import widths

    return widths.transfer(rows[0])


if __name__ == "__main__":
    main()
