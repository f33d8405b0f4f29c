"""Compares translators from before and after attention: Multi30k, the same minutes for each.

python benchmarks/history.py --pace --data=DIR --workdir=DIR --json=FILE
python benchmarks/history.py --data=DIR --workdir=DIR --json=FILE [--objective=NAME] [--tiny]
python benchmarks/history.py --table --json=FILE

`--data` holds multi30k/ (train, val and test_2016_flickr, .en and .de). All models translate
English to German with one tokenizer of 4,000 pieces. `--pace` measures the seconds of an update of
each model, all in turns on a quiet machine, and writes them to FILE-pace.json. A row is a model,
trained for as many updates as take {minutes} minutes at that pace on 2 cores, and the BLEU of its
translations of the test set with beam 4, of all sentences and by the length of the source, as in
figure 2 of Bahdanau et al. 2014. Complete runs are not repeated, and one that was stopped goes on.
`--table` prints the rows as Markdown and draws them in a PNG file beside --json.

The budget of all rows on 2 quiet cores is {hours:.1f} hours, evaluations included.
"""

import datetime
import json
import os
import pathlib
from typing import NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import comparison
import numpy as np
from harness import in_turn, machine

from transformer_jax.cli import use_huge_pages

RECURRENT = "configs/recurrent/multi30k.py"
COMMAND = "python benchmarks/history.py --data=DIR --workdir=DIR --json=FILE"
MINUTES = 6  # of a model's training, on 2 cores
EVALUATION = 0.5  # minutes
BEAM = 4
BOUNDS = (8, 11, 14, 18)  # most words of a source in each group of lengths but the last
TINY = {"model.d_model": 16, "train.batch": 4, "decode.beam": 1}


class Translator(NamedTuple):
    """A model, as a config and the keys in which it differs."""

    label: str
    config: str
    keys: dict = {}


def scored(score: str) -> Translator:
    """Returns a decoder with attention after its cells, by one of the six scores."""
    return Translator(f"attention, {score}", f"{RECURRENT}:luong", {"model.score": score})


TRANSLATORS = {
    "forward": Translator("no attention", f"{RECURRENT}:forward"),
    "reversed": Translator("no attention, source reversed", f"{RECURRENT}:reversed"),
    "bahdanau": Translator("attention before the cells, additive", f"{RECURRENT}:bahdanau"),
    **{
        score: scored(score)
        for score in ("content", "additive", "location", "general", "dot", "scaled_dot")
    },
    "hybrid": Translator("Transformer, then LSTM", f"{RECURRENT}:hybrid"),
    "transformer": Translator("Transformer", "configs/wmt/multi30k.py"),
}


def main() -> None:
    use_huge_pages()
    hours = len(TRANSLATORS) * (MINUTES + EVALUATION) / 60
    flags = comparison.parser(__doc__.format(minutes=MINUTES, hours=hours), list(TRANSLATORS))
    flags.add_argument("--pace", action="store_true", help="measure the seconds of an update")
    arguments = flags.parse_args()
    pace = arguments.json.with_name(f"{arguments.json.stem}-pace.json")
    if arguments.table:
        rows = json.loads(arguments.json.read_text())["rows"]
        print(table(rows))
        draw(rows, arguments.json.with_suffix(".png"))
        return
    if arguments.pace:
        seconds = seconds_per_update(arguments)
        text = json.dumps({"machine": machine(), "seconds_per_update": seconds}, indent=2)
        pace.write_text(text + "\n")
        return
    for name in arguments.objective or TRANSLATORS:
        row = measured(arguments, name, json.loads(pace.read_text())["seconds_per_update"][name])
        comparison.add_rows(arguments.json, [row], "objective", list(TRANSLATORS), COMMAND)


def configured(arguments, name: str, num_steps: int):
    """Returns the config of a translator that trains for so many updates."""
    from transformer_jax import config as configs

    translator = TRANSLATORS[name]
    keys = dict(translator.keys)
    for split, file in (("train", "train"), ("valid", "val"), ("test", "test_2016_flickr")):
        for side, language in (("source", "en"), ("target", "de")):
            keys[f"data.{split}_{side}"] = str(arguments.data / "multi30k" / f"{file}.{language}")
    keys |= {"data.cache": str(arguments.workdir / "cache"), "decode.beam": BEAM}
    keys |= {"train.num_steps": num_steps, "train.eval_every": num_steps, "checkpoint.every": 0.1}
    keys |= {"task.bleu_lines": 0}
    keys |= TINY if arguments.tiny else {}
    return configs.load(translator.config, {key: str(value) for key, value in keys.items()})


def seconds_per_update(arguments) -> dict[str, float]:
    """Returns the seconds of an update of each model. The models take turns."""
    from steps import stepping

    from transformer_jax.runs.spec import make_task

    calls = {}
    for name in TRANSLATORS:
        config = configured(arguments, name, num_steps=100)
        task = make_task(config)
        calls[name] = stepping(task, [task.rows().train.batch(0, range(config.train.batch))])
    return in_turn(calls, repeats=3 if arguments.tiny else 15)


def measured(arguments, name: str, seconds: float) -> dict:
    """Returns the row of a translator, trained here unless its run is complete."""
    import transformer_jax
    from transformer_jax.scores import predictions, texts

    num_steps = 2 if arguments.tiny else round(MINUTES * 60 / seconds)
    config = configured(arguments, name, num_steps)
    workdir = arguments.workdir / name
    transformer_jax.train(config, workdir)
    task, params = transformer_jax.open_run(workdir, "latest")
    pairs = list(task.texts.text("test"))[: 20 if arguments.tiny else None]
    outputs, references = task.translated_pairs(params, pairs)
    measure = texts.Bleu()
    statistics = measure.statistics(outputs, references)
    groups = np.digitize([len(source.split()) for source, _ in pairs], BOUNDS, right=True)
    return {
        "objective": name,
        "parameters": task.parameter_counts()["params"],
        "updates": num_steps,
        "milliseconds_per_update": 1000 * seconds,
        "bleu": predictions.scores(measure, statistics)["bleu"],
        "interval": predictions.intervals(measure, statistics)["bleu"],
        "by_length": [
            predictions.scores(measure, statistics[groups == group])["bleu"]
            for group in range(len(BOUNDS) + 1)
        ],
        "sentences": np.bincount(groups, minlength=len(BOUNDS) + 1).tolist(),
        "tokenizer": task.tokenizer.fingerprint(),
        "signature": texts.signatures(outputs, references, "de")["bleu_signature"],
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "revision": comparison.revision(),
    }


# results


def group_names() -> list[str]:
    """Returns the ranges of words of the groups of lengths."""
    lowest = [1, *(bound + 1 for bound in BOUNDS)]
    return [f"{low}-{high}" for low, high in zip(lowest, BOUNDS)] + [f"{lowest[-1]}-"]


def table(rows: list[dict]) -> str:
    """Returns the rows as Markdown."""
    costs = ["parameters", "ms an update", "updates"]
    header = ["model", *costs, "BLEU", *(f"{name} words" for name in group_names())]
    lines = []
    for row in rows:
        low, high = row["interval"]
        lines.append(
            [
                TRANSLATORS[row["objective"]].label,
                f"{row['parameters']:,}",
                f"{row['milliseconds_per_update']:.0f}",
                f"{row['updates']:,}",
                f"{row['bleu']:.1f} ({low:.1f} to {high:.1f})",
                *(f"{score:.1f}" for score in row["by_length"]),
            ]
        )
    return comparison.markdown(header, lines)


def draw(rows: list[dict], path: pathlib.Path) -> None:
    """Draws BLEU by the length of the source, as figure 2 of Bahdanau et al. 2014."""
    from transformer_jax.pictures.figure import new_figure, save, style

    title = f"Multi30k, English to German: BLEU by length, {MINUTES} minutes of training each"
    figure = new_figure((9, 5), title)
    axes = figure.subplots()
    names = group_names()
    for number, row in enumerate(rows):
        label = f"{TRANSLATORS[row['objective']].label} ({row['bleu']:.1f})"
        axes.plot(names, row["by_length"], label=label, markersize=4, **style(number))
    axes.set_xlabel("words of the source")
    axes.set_ylabel("sacreBLEU, beam 4")
    axes.grid(alpha=0.3)
    axes.legend(bbox_to_anchor=(1.02, 1), loc="upper left", fontsize=8)
    save(figure, path)


if __name__ == "__main__":
    main()
