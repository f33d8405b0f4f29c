"""What small models of every family know of English, at equal compute: the text of a child.

python benchmarks/language_knowledge.py --data=DIR --workdir=DIR --json=FILE [--only=gpt-0 ...]
python benchmarks/language_knowledge.py --finetune --data=DIR --workdir=DIR --json=FILE
python benchmarks/language_knowledge.py --whole=NAME --data=DIR --workdir=DIR --json=FILE
python benchmarks/language_knowledge.py --table --json=FILE

`--data` has the files of the BabyLM challenge: text/NAME.txt and text/NAME_dev.txt, blimp/*.jsonl,
supplement/*.jsonl, glue/{mnli,qqp}.{train,valid}.jsonl and other/reading_data.csv. A part is one
run of configs/babylm/pretrain.py, named FAMILY-SEED, with its evaluations:

- training: as many updates as take 30 TFLOP, forward and backward with padding. DistilBERT has the
  run of BERT as its teacher, whose compute comes before its own. Bigrams are learned by products
  with one-hot vectors, so that they read little text; counted trigrams of the whole text stand
  beside the rows;
- BLiMP: 100 pairs of each file, drawn once for all runs; for the runs in CURVES also at each of
  their checkpoints, after 0.1 to 3 million words, as far as a run reads;
- BLiMP's supplement: all pairs of its five files;
- reading times: the gain in R^2 of first-pass reading and self-paced reading over length,
  frequency and position of a word.

The row of a part is put into --json as soon as it ends. The same command goes on after a stop, and
trains nothing twice. A part takes 5 to 15 minutes of a core, and all of them about four hours.

`--finetune` fine-tunes five families on MNLI and QQP by the rates and epochs of the challenge, 20
minutes of a core each. `--whole=gpt-0` evaluates a run on all pairs of BLiMP.
"""

import argparse
import datetime
import json
import os
import pathlib
import random
import subprocess
import sys
from typing import TYPE_CHECKING

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import comparison
import numpy as np
from harness import machine

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMMAND = "python benchmarks/language_knowledge.py --data=DIR --workdir=DIR --json"
PRETRAINING = "babylm/pretrain"
BUDGET = "30TFLOP"
FAMILIES = {
    "gpt": "GPT",
    "decoder": "decoder: rotary, SwiGLU",
    "lstm": "LSTM",
    "awd_lstm": "AWD-LSTM",
    "transformer_xl": "Transformer-XL",
    "elmo": "ELMo",
    "bigram": "bigram",
    "gpt_bert": "GPT-BERT",
    "unilm": "UniLM",
    "xlnet": "XLNet",
    "t5": "T5",
    "bart": "BART",
    "bert": "BERT",
    "roberta": "RoBERTa",
    "albert": "ALBERT",
    "distilbert": "DistilBERT",
    "linformer": "Linformer",
    "realformer": "RealFormer",
    "electra": "ELECTRA",
}
TWICE = ("gpt", "lstm", "gpt_bert", "t5", "bert", "electra")  # with two seeds
PARTS = [f"{name}-{seed}" for name in FAMILIES for seed in range(2 if name in TWICE else 1)]
CURVES = [f"{name}-0" for name in TWICE]
AT_WORDS = (1e5, 3e5, 1e6, 2e6, 3e6)
FINETUNED = {
    "gpt": "gpt",
    "gpt_bert": "bert",
    "bert": "bert",
    "roberta": "roberta",
    "electra": "electra",
}
TASKS = {"mnli": "MNLI", "qqp": "QQP, F1"}
TIMES = {"RTfirstpass": "first-pass times", "self_paced_reading_time": "self-paced times"}
PREDICTORS = ("length", "Subtlex_log10", "context_length")
DRAWN = 100  # pairs of each file of BLiMP
TINY = {"model.vocab_size": 400, "train.batch": 8}
SHORT = {"train.num_steps": 2, "train.eval_every": 2, "checkpoint.every": 2}
# Those of the first row, whose tokenizer most models share.
BASELINES = {"ngrams": "*trigrams of the training text*", "shorter": "*fewer tokens*"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("data", "workdir", "json"):
        parser.add_argument(f"--{name}", type=pathlib.Path)
    parser.add_argument("--only", choices=PARTS, action="append", help="a part; may be repeated")
    parser.add_argument("--finetune", action="store_true", help="fine-tune, instead of the parts")
    parser.add_argument("--whole", choices=PARTS, help="all pairs of BLiMP, for a finished part")
    parser.add_argument("--table", action="store_true", help="print and draw the rows of --json")
    parser.add_argument("--tiny", action="store_true", help="two updates each, to try the script")
    arguments = parser.parse_args()
    if arguments.table:
        rows = json.loads(arguments.json.read_text())["rows"]
        print(table(rows))
        return draw(rows, arguments.json.with_suffix(".png"))
    if arguments.whole:
        add(arguments, arguments.whole, {"whole": pairs(arguments, arguments.whole, "blimp")})
    elif arguments.finetune:
        for name in arguments.only or [f"{family}-0" for family in FINETUNED]:
            add(arguments, name, {"finetuned": finetuned(arguments, name)})
    else:
        for name in arguments.only or PARTS:
            add(arguments, name, measured(arguments, name))


def add(arguments, name: str, found: dict) -> None:
    """Adds what was measured to the row of a part."""
    path = arguments.json
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    row = next((row for row in rows if row["part"] == name), {"part": name}) | found
    print(json.dumps(row), flush=True)
    comparison.add_rows(path, [row], "part", PARTS, COMMAND)


# --------------------------------------------------------------------------------------------------
# Training, and what it has taught.


def measured(arguments, name: str) -> dict:
    """Returns the row of a part."""
    run = trained(arguments, name)
    row = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "revision": comparison.revision(),
        **described(run, read_words(arguments)),
        "blimp": pairs(arguments, name, "drawn"),
        "supplement": pairs(arguments, name, "supplement"),
        "reading": reading(arguments, run),
    }
    if name in CURVES:
        row["curve"] = curve(arguments, run)
    return row


def trained(arguments, name: str) -> pathlib.Path:
    """Returns the run of a part, trained here unless it is complete."""
    family, _, seed = name.rpartition("-")
    run = arguments.workdir / name
    text = arguments.data / "text"
    sources = sorted(path.stem for path in text.glob("*.txt") if not path.stem.endswith("_dev"))
    files = [",".join(f"{text}/{source}{end}.txt" for source in sources) for end in ("", "_dev")]
    keys = dict(zip(("data.train_files", "data.valid_files"), files))
    keys |= {"data.cache": arguments.workdir / "cache", "train.seed": seed, "data.seed": seed}
    if family == "distilbert":
        teacher = trained(arguments, f"bert-{seed}")
        keys["task.teacher"] = teacher
        keys["init_from"] = {"": {"run": str(teacher), "layers": "1,3"}}
    if name in CURVES:
        keys["checkpoint.at_words"] = AT_WORDS
    config = f"{PRETRAINING}:{family}"
    if arguments.tiny:
        keys |= TINY | SHORT
        if family == "bigram":
            keys["model.d_model"] = TINY["model.vocab_size"]
        keys.pop("checkpoint.at_words", None)
    budget = [] if arguments.tiny else [f"--budget={BUDGET}"]
    options = [f"--config.{key}={value}" for key, value in keys.items()]
    output("train", run, f"--config={config}", *budget, *options)
    return run


def read_words(arguments) -> int:
    """Returns the number of words of the training text."""
    files = (arguments.data / "text").glob("*.txt")
    return sum(len(file.read_text().split()) for file in files if not file.stem.endswith("_dev"))


def described(run: pathlib.Path, words: int) -> dict:
    """Returns the size of a run, and how often it has read a text of so many words."""
    from transformer_jax.runs import spec
    from transformer_jax.runs.spec import make_task

    config = spec.read(run).config
    task = make_task(config, run)
    counts = task.parameter_counts()
    return {
        "parameters": counts.get("params_trained", counts["params"]),  # without those of a teacher
        "updates": config.train.num_steps,
        "passes": task.words_read(config.train.num_steps) / words,
    }


def pairs(arguments, name: str, which: str) -> dict:
    """Returns the accuracies of a part's run on minimal pairs."""
    files = {
        "drawn": drawn(arguments),
        "blimp": arguments.data / "blimp",
        "supplement": arguments.data / "supplement",
    }[which]
    flags = (f"--minimal_pairs={files}/*.jsonl", "--skip_equal", "--step=latest")
    found = json.loads(output("evaluate", arguments.workdir / name, *flags))
    return short(found)


def short(found: dict) -> dict:
    """Returns the result of an evaluation without paths, and of files the accuracies alone."""
    kept = {key: found[key] for key in found if key not in ("workdir", "minimal_pairs")}
    kept["by_file"] = {name: each["accuracy"] for name, each in found["by_file"].items()}
    kept["baselines"] = {
        name: {key: each[key] for key in each if not key.startswith("by_")}
        for name, each in found["baselines"].items()
    }
    return kept


def drawn(arguments) -> pathlib.Path:
    """Returns the folder of the pairs that are drawn from each file of BLiMP."""
    folder = arguments.workdir / "drawn"
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted((arguments.data / "blimp").glob("*.jsonl")):
        lines = file.read_text().splitlines()
        count = min(5 if arguments.tiny else DRAWN, len(lines))
        chosen = sorted(random.Random(file.stem).sample(range(len(lines)), count))
        (folder / file.name).write_text("".join(f"{lines[number]}\n" for number in chosen))
    return folder


def curve(arguments, run: pathlib.Path) -> list[dict]:
    """Returns the accuracies at each checkpoint, over the words of training text before it."""
    flags = (f"--minimal_pairs={drawn(arguments)}/*.jsonl", "--skip_equal", "--steps=all")
    found = json.loads(output("evaluate", run, *flags))
    keys = ("words", "accuracy", "interval", "by_field")
    return [{key: each[key] for key in keys} for each in found["checkpoints"]]


def reading(arguments, run: pathlib.Path) -> dict:
    """Returns what the surprisals of a run explain of reading times."""
    flags = [f"--table={arguments.data}/other/reading_data.csv", "--step=latest"]
    flags += [f"--times={','.join(TIMES)}", f"--predictors={','.join(PREDICTORS)}"]
    return json.loads(output("surprisal", run, *flags))["times"]


def finetuned(arguments, name: str) -> dict:
    """Returns the scores of a part's run on the tasks, after fine-tuning it on each."""
    run = trained(arguments, name)
    glue = arguments.data / "glue"
    keys = {
        "init_from": run,
        "data.cache": arguments.workdir / "cache",
        "data.train_files": f"{glue}/{{task}}.train.jsonl",
        "data.valid_files": f"{glue}/{{task}}.valid.jsonl",
        # The table has the scores after the last update, and QQP's 20,215 pairs take long.
        "train.eval_every": 0.5,
    }
    keys |= SHORT if arguments.tiny else {}
    options = [f"--config.{key}={value}" for key, value in keys.items()]
    # The argument is TASK,MODEL, of which --tasks adds the first.
    config = f"babylm/finetune:{FINETUNED[name.rpartition('-')[0]]}"
    flags = (f"--config={config}", f"--tasks={','.join(TASKS)}", *options)
    found = json.loads(output("finetune", arguments.workdir / f"{name}-finetuned", *flags))
    return {
        task: {"measure": measure, "score": found["tasks"][task][measure]["mean"]}
        for task, measure in found["measures"].items()
    }


def output(program: str, workdir: pathlib.Path, *flags: str) -> str:
    """Returns the last line that a program of the package prints."""
    command = [sys.executable, "-m", f"transformer_jax.{program}", f"--workdir={workdir}", *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""


# --------------------------------------------------------------------------------------------------
# Results.


def table(rows: list[dict]) -> str:
    """Returns the rows as Markdown, the mean of the seeds of a family in one line."""
    header = ["model", "score", "parameters", "updates", "passes", "BLiMP", "fields"]
    tasks = [task for task in TASKS if any(task in row.get("finetuned", {}) for row in rows)]
    header += ["supplement", *TIMES.values(), *(TASKS[task] for task in tasks)]
    lines = []
    for family, own in by_family(rows).items():
        first = own[0]
        tuned = first.get("finetuned", {})
        lines.append(
            [
                FAMILIES[family] + (f", {len(own)} seeds" if len(own) > 1 else ""),
                first["blimp"]["kind"],
                f"{first['parameters']:,}",
                f"{first['updates']:,}",
                f"{first['passes']:.1f}",
                accuracy_cell([row["blimp"] for row in own]),
                " / ".join(f"{100 * value:.0f}" for value in fields(own).values()),
                accuracy_cell([row["supplement"] for row in own]),
                *(reading_cell([row["reading"][name] for row in own]) for name in TIMES),
                *(f"{100 * tuned[task]['score']:.1f}" if task in tuned else "" for task in tasks),
            ]
        )
    for name, label in BASELINES.items():
        cells = [
            accuracy_cell([rows[0][part]["baselines"][name]]) for part in ("blimp", "supplement")
        ]
        rest = [""] * (len(TIMES) + len(tasks))
        lines.append([label, "", "", "", "", cells[0], "", cells[1], *rest])
    return comparison.markdown(header, lines)


def by_family(rows: list[dict]) -> dict[str, list[dict]]:
    """Returns the rows of each family, those of the highest accuracy first."""
    found = {}
    for row in rows:
        found.setdefault(row["part"].rpartition("-")[0], []).append(row)
    order = sorted(found, key=lambda name: -mean(row["blimp"]["macro"] for row in found[name]))
    return {name: found[name] for name in order}


def mean(values) -> float:
    return float(np.mean([*values]))


def accuracy_cell(results: list[dict]) -> str:
    """Returns the mean accuracy over files and seeds with half of its 95 % interval, in percent.

    All seeds have the same pairs, so that the interval of their mean is as wide as that of one.
    """
    reach = mean((high - low) / 2 for low, high in (each["macro_interval"] for each in results))
    return f"{100 * mean(each['macro'] for each in results):.1f} ± {100 * reach:.1f}"


def reading_cell(results: list[dict]) -> str:
    """Returns the gain in R² for held-out sentences, in points, and the milliseconds per bit."""
    gain = mean(each["held_out_gain"] for each in results)
    return f"{100 * gain:+.2f}, {mean(each['milliseconds_per_bit'] for each in results):+.1f} ms"


def fields(rows: list[dict]) -> dict[str, float]:
    """Returns the accuracy of each field of BLiMP, the mean over the seeds."""
    found = [merged(row["blimp"]["by_field"]) for row in rows]
    return {name: mean(each[name] for each in found) for name in found[0]}


def merged(by_field: dict[str, dict]) -> dict[str, float]:
    """Returns the accuracies of fields; one file writes "syntax/semantics" with a slash."""
    sums = {}
    for name, each in by_field.items():
        right, count = sums.get(name.replace("/", "_"), (0.0, 0))
        right += each["accuracy"] * each["pairs"]
        sums[name.replace("/", "_")] = (right, count + each["pairs"])
    return {name: right / count for name, (right, count) in sums.items()}


def draw(rows: list[dict], path: pathlib.Path) -> None:
    """Draws the accuracy by family and phenomenon, and over words seen for the runs in CURVES."""
    from transformer_jax.pictures.figure import save

    save(phenomena(by_family(rows)), path)
    curves = {row["part"]: row["curve"] for row in rows if "curve" in row}
    if curves:
        save(over_words(curves), path.with_name(f"{path.stem}_words{path.suffix}"))


def phenomena(families: dict[str, list[dict]]) -> "Figure":
    """Returns a map of accuracies, families by phenomena."""
    from transformer_jax.pictures.figure import new_figure

    first = next(iter(families.values()))[0]["blimp"]["by_term"]
    terms = sorted(first, key=lambda term: -first[term]["accuracy"])
    values = [
        [100 * mean(row["blimp"]["by_term"][term]["accuracy"] for row in own) for term in terms]
        for own in families.values()
    ]
    figure = new_figure((9, 1.5 + 0.3 * len(families)), "BLiMP by phenomenon: accuracy in percent")
    axes = figure.subplots()
    image = axes.imshow(values, cmap="RdBu", vmin=0, vmax=100, aspect="auto")
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            color = "white" if abs(value - 50) > 35 else "black"
            axes.text(column, row, f"{value:.0f}", ha="center", va="center", color=color)
    labels = [term.replace("_", " ") for term in terms]
    axes.set_xticks(range(len(terms)), labels, rotation=40, ha="right")
    axes.set_yticks(range(len(families)), [FAMILIES[name] for name in families])
    figure.colorbar(image, label="accuracy, chance is 50")
    return figure


def over_words(curves: dict[str, list[dict]]) -> "Figure":
    """Returns a panel for each field of BLiMP, with a line for each run."""
    from transformer_jax.pictures.figure import COLORS, new_figure

    points = next(iter(curves.values()))
    names = [*merged(points[0]["by_field"])]
    figure = new_figure((3 * len(names), 3.6), "BLiMP by field, over words of training text")
    panels = figure.subplots(1, len(names), sharey=True)
    for name, axes in zip(names, panels):
        for color, (part, points) in zip(COLORS, curves.items()):
            words = [point["words"] for point in points]
            values = [100 * merged(point["by_field"])[name] for point in points]
            label = FAMILIES[part.rpartition("-")[0]]
            axes.semilogx(words, values, marker="o", markersize=3, color=color, label=label)
        axes.axhline(50, color="0.6", linewidth=0.8)
        axes.set(title=name.replace("_", " and "), xlabel="words")
    panels[0].set_ylabel("accuracy, %")
    panels[-1].legend(fontsize=8)
    return figure


if __name__ == "__main__":
    main()
