"""Compares the objectives of pre-training on one small budget, as table 1 of Lewis et al. 2019.

python benchmarks/objectives.py --text=unsup.txt --data=DIR --workdir=DIR [--objective=NAME] \\
    [--json=FILE] [--tiny]
python benchmarks/objectives.py --table --json=FILE

`--text` is IMDB's unlabelled reviews, a sentence a line with a blank line between reviews; every
fiftieth review is held out. `--data` holds sst2/{train,dev}.tsv and xquad/xquad.en.json. A part is
one objective: its run of configs/objectives/pretrain.py, then SST-2, XQuAD (every fourth article is
held out), and summaries of the functions of Python's standard library. Its row is put into --json
as soon as it ends. Complete runs are not repeated, and a part that was stopped goes on. `--table`
prints the rows as Markdown and draws them in a PNG file beside --json.

The budget is in updates and tokens:
- pre-training: 3,000 updates of 1,024 tokens, 3.1 of the text's 18 million;
- SST-2: 217 updates of 32 sentences, an epoch, 3 seeds;
- XQuAD: 250 updates of 16 rows of 128 tokens, 2 seeds;
- summaries: 800 updates of 2,048 tokens of functions, one seed.

A function is read up to its 96th token. All models write their summaries greedily. Perplexities
are per token of the references and of their ends, with one tokenizer for all models.
- BART's runs are fine-tuned as they are; `none` begins anew with their shape and tokenizer.
- The language model reads documents SOURCE MARKER TARGET, and learns all their tokens. Its
  perplexity is that of the target.
- The multitask model is fine-tuned with masked targets, and appends masks (Dong et al. 2019).
- The masked language model becomes an encoder, and its decoder of 2 layers is new (Rothe et al.
  2020, BERT2RND).
- The permuted language model writes none: no encoder-decoder here has its relative positions.
"""

import collections
import dataclasses
import datetime
import functools
import itertools
import json
import math
import os
import pathlib
import platform
import types
from typing import NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import comparison
import numpy as np
import transfer
from harness import machine

from transformer_jax.train import spread

COMMAND = "python benchmarks/objectives.py --text=unsup.txt --data=DIR --workdir=DIR --json"
PRETRAINING = "configs/objectives/pretrain.py"
SUMMARIES = "configs/objectives/summaries.py"


class Objective(NamedTuple):
    """An objective, or none."""

    label: str
    # SQuAD 1.1 F1, MNLI accuracy and XSum perplexity in table 1 of Lewis et al. 2019
    published: tuple[float, float, float] | None = None
    summaries: str = "as pre-trained"  # the model that writes them; "": none
    # the run that gives tokenizer and shape to a model that is not pre-trained
    shape: str = ""


# The most informative first.
OBJECTIVES = {
    "text-infilling": Objective("BART, text infilling", (90.8, 84.0, 6.61)),
    "none": Objective("BART, not pre-trained", None, "begins anew", "text-infilling"),
    "language-model": Objective("language model", (76.7, 80.1, 7.00), "source as prefix"),
    "masked": Objective("masked language model", (90.0, 83.5, 7.87), "new decoder"),
    "permuted": Objective("permuted language model", (89.1, 83.7, 7.69), ""),
    "multitask": Objective("multitask masked", (89.2, 82.4, 7.50), "masks behind the source"),
    "masked-seq2seq": Objective("masked seq2seq", (87.0, 82.1, 6.80)),
    "document-rotation": Objective("BART, document rotation", (77.2, 75.3, 17.14)),
    "infilling-permutation": Objective("BART, infilling and permutation", (90.8, 83.8, 6.62)),
    "token-deletion": Objective("BART, token deletion", (90.4, 84.1, 6.90)),
    "token-masking": Objective("BART, token masking", (90.4, 84.1, 7.08)),
    "sentence-permutation": Objective("BART, sentence permutation", (85.4, 81.5, 10.93)),
}
FLOOR = Objective("no model", None, "name and parameters")


# Each with its number of seeds.
CASES = {
    "sst2": (transfer.with_keys("sst2", train__num_steps=217), 3),
    "xquad": (
        transfer.with_keys("xquad", train__num_steps=250, task__length=128, task__stride=48),
        2,
    ),
}
SUMMARY_SEEDS = 1
# Splits of the functions, and those of the corpus that they join.
SPLITS = {"train": ("train",), "valid": ("valid", "test")}
SOURCE_TOKENS = 96  # of a function
OUTPUT_TOKENS = 50
ROUGE = ("rouge1", "rouge2", "rougeL")
MARKER = "<summary>"
# The keys in which the fine-tuning of a language model differs from its pre-training. The rows are
# longer, so that few documents are divided.
LANGUAGE_MODEL = {
    "task.length": 512,
    "data.mask_documents": "true",
    "data.marker": MARKER,
    "train.num_steps": 800,
    "train.batch": 4,
    "train.eval_every": 800,
    "checkpoint.every": 800,
    "optimizer.learning_rate": 1e-3,
    "optimizer.warmup_steps": 0.1,
}
TWO_STEPS = {"train.num_steps": 2}
TINY = TWO_STEPS | {"model.d_model": 16, "model.d_ff": 32, "model.vocab_size": 400}


def main() -> None:
    arguments = comparison.parser(__doc__, list(OBJECTIVES)).parse_args()
    if arguments.table:
        rows = json.loads(arguments.json.read_text())["rows"]
        print(table(rows))
        draw(rows, arguments.json.with_suffix(".png"))
        return
    folder = prepare(arguments)
    for name in arguments.objective or OBJECTIVES:
        row = measured(arguments, folder, name)
        print(json.dumps(row), flush=True)
        if arguments.json:
            tokens = pretraining(arguments, name) / "tokenizer"
            rows = [floor(arguments, tokens), row]
            comparison.add_rows(arguments.json, rows, "objective", ["floor", *OBJECTIVES], COMMAND)


def prepare(arguments) -> pathlib.Path:
    """Writes the splits of XQuAD into a folder, and returns it."""
    folder = arguments.workdir / "data"
    folder.mkdir(parents=True, exist_ok=True)
    transfer.split_articles(arguments.data, folder)
    return folder


# parts


def pretraining(arguments, name: str) -> pathlib.Path:
    """Returns the workdir of the run that a part begins with."""
    return arguments.workdir / (OBJECTIVES[name].shape or name) / "pretraining"


def measured(arguments, folder: pathlib.Path, name: str) -> dict:
    """Returns the row of an objective. `folder` holds the data."""
    run, shape = pretraining(arguments, name), OBJECTIVES[name].shape
    keys = comparison.write_reviews(arguments.text, folder, arguments.tiny)
    keys |= TINY if arguments.tiny else {}
    train(arguments, f"{PRETRAINING}:{shape or name}", run, keys)
    begin = {"init_from": run} | ({"train.pretrained": "false"} if shape else {})
    workdir = arguments.workdir / name
    row = {"objective": name, **described(run)}
    for case, (settings, seeds) in CASES.items():
        options = types.SimpleNamespace(
            init_from=run,
            data=arguments.data,
            workdir=workdir,
            tiny=arguments.tiny,
            seeds=1 if arguments.tiny else seeds,
        )
        settings = dataclasses.replace(settings, keys=settings.keys | begin)
        row[case] = transfer.fine_tuned(options, folder, case, settings)
    if OBJECTIVES[name].summaries:
        row |= summarised(arguments, folder, workdir / "summaries", begin)
    return row


def train(arguments, config: str, workdir: pathlib.Path, keys: dict, seeds: int = 0) -> dict:
    """Trains a run, or a number of seeds. Returns the last scores of the seeds."""
    cache = {"data.cache": arguments.workdir / "cache"}
    return comparison.train(config, workdir, cache | keys, seeds)


def described(run: pathlib.Path) -> dict:
    """Returns the size of a run's model, and the origin of its row."""
    from transformer_jax.corpora.python_library import PythonFunctions
    from transformer_jax.data import tokenizers
    from transformer_jax.runs import spec
    from transformer_jax.runs.spec import make_task

    config = spec.read(run).config
    splits = itertools.chain.from_iterable(SPLITS.values())
    return {
        "parameters": make_task(config, run).parameter_counts()["params"],
        "updates": config.train.num_steps,
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "revision": comparison.revision(),
        "python": platform.python_version(),
        "functions": {split: PythonFunctions(split).fingerprint()["functions"] for split in splits},
        "tokenizer": tokenizers.load(run / "tokenizer").fingerprint(),
    }


# summaries


class Function(NamedTuple):
    """A function's first tokens, its summary, and the baseline of that."""

    source: str
    target: str
    lead: str


@functools.cache
def functions(split: str, tokens: pathlib.Path) -> list[Function]:
    """Returns the functions of a split; `tokens` is the folder of the tokenizer that cuts them."""
    from transformer_jax.corpora.python_library import PythonFunctions
    from transformer_jax.data import tokenizers

    tokenizer = tokenizers.load(tokens)
    cut = []
    for corpus in map(PythonFunctions, SPLITS[split]):
        sources, targets = map(list, zip(*corpus))
        first = [ids[:SOURCE_TOKENS] for ids in tokenizer.encode(sources)]
        cut += map(Function, tokenizer.decode(first), targets, map(corpus.lead, sources))
    return cut


def write_functions(folder: pathlib.Path, tokens: pathlib.Path) -> None:
    """Writes the functions of both splits as JSON lines, and as files of sources and targets."""
    for split in SPLITS:
        pairs = functions(split, tokens)
        objects = [json.dumps({"source": pair.source, "target": pair.target}) for pair in pairs]
        (folder / f"{split}.jsonl").write_text("\n".join(objects) + "\n", "utf-8")
        for side in ("source", "target"):
            lines = [getattr(pair, side) for pair in pairs]
            (folder / f"{split}.{side}").write_text("\n".join(lines) + "\n", "utf-8")


def targets(split: str, tokens: pathlib.Path) -> list[list[int]]:
    """Returns the ids of the summaries of a split, without special tokens."""
    from transformer_jax.data import tokenizers

    return tokenizers.load(tokens).encode([pair.target for pair in functions(split, tokens)])


def summarised(arguments, folder: pathlib.Path, workdir: pathlib.Path, begin: dict) -> dict:
    """Returns the scores of the summaries of a run, fine-tuned to write them."""
    from transformer_jax.runs import spec

    run = begin["init_from"]
    tokens = run / "tokenizer"
    write_functions(folder, tokens)
    config = spec.read(run).config
    family, task = config.model.name, config.task.name
    if family == "gpt":
        outputs_by_seed = by_language_model(arguments, folder, workdir, begin)
    else:
        writes = "masked_targets" if task == "mixed_masks" else "text_to_text"
        if family == "bert" and task != "mixed_masks":
            begin = {"init_from": with_decoder(run, workdir / "encoder")}
        outputs_by_seed = by_source(arguments, folder, workdir, begin, f"{SUMMARIES}:{writes}")
    count = sum(len(ids) + 1 for ids in targets("valid", tokens))
    return {
        "perplexity": spread([math.exp(-log_prob / count) for log_prob, _ in outputs_by_seed]),
        "rouge": rouge([outputs for _, outputs in outputs_by_seed], functions("valid", tokens)),
        "outputs": [outputs[:3] for _, outputs in outputs_by_seed],
    }


def seeds_of(arguments, workdir: pathlib.Path) -> list[pathlib.Path]:
    """Returns the workdirs of the seeds of a fine-tuning for summaries."""
    return [workdir / f"seed-{n}" for n in range(1 if arguments.tiny else SUMMARY_SEEDS)]


def by_source(arguments, folder, workdir, begin, config: str) -> list[tuple[float, list[str]]]:
    """Returns for each seed the log-probability of all references, and the outputs.

    The `config` is that of a model that writes the target of a source.
    """
    from transformer_jax.runs.open import open_run

    files = {f"data.{split}_files": folder / f"{split}.jsonl" for split in SPLITS}
    keys = begin | files | (TWO_STEPS if arguments.tiny else {})
    runs = seeds_of(arguments, workdir)
    losses = train(arguments, config, workdir, keys, len(runs))["valid/loss"]["values"]
    outputs_by_seed = []
    for run, loss in zip(runs, losses):
        task, params = open_run(run, "latest")
        framed = task.tokenizer.target.framed
        count = sum(len(framed(ids)) for ids in targets("valid", run / "tokenizer"))
        sources = [pair.source for pair in functions("valid", run / "tokenizer")]
        best = task.translate(params, sources)
        outputs_by_seed.append((-loss * count, [hypotheses[0].text for hypotheses in best]))
    return outputs_by_seed


def by_language_model(arguments, folder, workdir, begin) -> list[tuple[float, list[str]]]:
    """Returns for each seed the log-probability of all references, and the outputs."""
    from transformer_jax.runs.open import open_run

    sides = itertools.product(SPLITS, ("source", "target"))
    files = {f"data.{split}_{side}": folder / f"{split}.{side}" for split, side in sides}
    keys = begin | files | LANGUAGE_MODEL | (TINY if arguments.tiny else {})
    runs = seeds_of(arguments, workdir)
    train(arguments, f"{PRETRAINING}:language-model", workdir, keys, len(runs))
    outputs_by_seed = []
    for run in runs:
        task, params = open_run(run, "latest")
        pairs = functions("valid", run / "tokenizer")
        prompts = [f"{pair.source} {MARKER}" for pair in pairs]
        texts = [f"{prompt} {pair.target}" for prompt, pair in zip(prompts, pairs)]
        ids = [
            (task.with_start(prompt), [*text[len(prompt) :], task.tokenizer.eos_id])
            for prompt, text in zip(*map(task.tokenizer.encode, (prompts, texts)))
        ]
        log_prob = sum(each.log_prob for each in task.token_log_likelihoods(params, ids))
        written = task.generate(params, prompts, max_tokens=OUTPUT_TOKENS, temperature=0)
        outputs_by_seed.append((log_prob, [continuation.text.strip() for continuation in written]))
    return outputs_by_seed


def with_decoder(run: pathlib.Path, workdir: pathlib.Path) -> pathlib.Path:
    """Returns a run of BART at step 0: its encoder is that of a BERT, its decoder is new.

    BERT's vector of the first text is added to its positions, because BART has no types of tokens.
    """
    from transformer_jax import config as configs
    from transformer_jax.runs import spec
    from transformer_jax.runs.open import open_run
    from transformer_jax.runs.spec import make_task
    from transformer_jax.training import step

    if spec.exists(workdir):
        return workdir
    bert, pretrained = open_run(run, "latest")
    shape = {f"model.{key}": bert.config.model[key] for key in ("d_model", "d_ff", "vocab_size")}
    shape["model.num_encoder_layers"] = bert.config.model.num_layers
    # This key gives the tokenizer alone. The parameters are assigned below.
    shape["init_from"] = {"encoder": str(run)}
    task = make_task(configs.load(f"{PRETRAINING}:text-infilling", shape))
    params = step.init_params(task)
    params |= {name: pretrained[name] for name in ("encoder", "token_embed", "embed_norm")}
    positions = pretrained["position_embed"]["embedding"] + pretrained["type_embed"]["embedding"][0]
    table = params["position_embed"]["embedding"]
    params["position_embed"] = {"embedding": table.at[-len(positions) :].set(positions)}
    spec.create(workdir, task, params)
    return workdir


def rouge(outputs: list[list[str]], pairs: list[Function]) -> dict[str, dict]:
    """Returns ROUGE of the outputs of each seed: means, and the bootstrap over functions."""
    from transformer_jax.scores import predictions
    from transformer_jax.scores.texts import Rouge

    measure = Rouge(str.splitlines)
    references = [pair.target for pair in pairs]
    statistics = np.mean([measure.statistics(each, references) for each in outputs], axis=0)
    means = predictions.scores(measure, statistics)
    intervals = predictions.intervals(measure, statistics)
    return {name: {"mean": means[name], "interval": intervals[name]} for name in ROUGE}


def floor(arguments, tokens: pathlib.Path) -> dict:
    """Returns the row of the baselines.

    They are the most frequent label; the frequencies of tokens in the summaries for training, each
    counted once more than it occurs; and the lead, a function's name and parameters.
    """
    from transformer_jax.data import tokenizers

    dev = (arguments.data / "sst2/dev.tsv").read_text("utf-8").splitlines()
    labels = collections.Counter(line.rpartition("\t")[2] for line in dev)
    tokenizer = tokenizers.load(tokens)
    counts, held_out = (
        collections.Counter(itertools.chain(*([*ids, tokenizer.eos_id] for ids in each)))
        for each in (targets(split, tokens) for split in SPLITS)
    )
    size = counts.total() + tokenizer.vocab_size
    log_prob = sum(count * math.log((counts[i] + 1) / size) for i, count in held_out.items())
    pairs = functions("valid", tokens)
    return {
        "objective": "floor",
        "sst2": spread([max(labels.values()) / labels.total()]),
        "perplexity": spread([math.exp(-log_prob / held_out.total())]),
        "rouge": rouge([[pair.lead for pair in pairs]], pairs),
    }


# results


COLUMNS = {
    "sst2": ("SST-2 accuracy", 100),
    "xquad": ("XQuAD F1", 100),
    "perplexity": ("perplexity of summaries", 1),
}


def table(rows: list[dict]) -> str:
    """Returns the rows as Markdown, beside the published scores."""
    scores = [name for name, _ in COLUMNS.values()] + ["ROUGE-1", "ROUGE-2", "ROUGE-L"]
    published = ["SQuAD F1", "MNLI", "XSum perplexity"]
    header = ["objective", "parameters", "summaries", *scores]
    lines = []
    for row in rows:
        objective = OBJECTIVES.get(row["objective"], FLOOR)
        cells = [objective.label, f"{row['parameters']:,}" if "parameters" in row else ""]
        cells.append(objective.summaries)
        cells += [comparison.spread_cell(row.get(key), unit) for key, (_, unit) in COLUMNS.items()]
        cells += [_interval_cell(row.get("rouge", {}).get(name)) for name in ROUGE]
        lines.append([*cells, *map(str, objective.published or ("",) * len(published))])
    return comparison.markdown([*header, *(f"published {name}" for name in published)], lines)


def _interval_cell(score: dict | None) -> str:
    if score is None:
        return ""
    low, high = score["interval"]
    return f"{score['mean']:.1f} ({low:.1f} to {high:.1f})"


def draw(rows: list[dict], path: pathlib.Path) -> None:
    """Draws the scores of each objective with their deviations, and ROUGE-L with its interval.

    Dashed lines are the scores without a model.
    """
    from transformer_jax.pictures.figure import COLORS, new_figure, save

    floor_row, *rows = rows
    figure = new_figure((11, 4.5), "Objectives of pre-training on one budget")
    axes = figure.subplots(1, len(COLUMNS) + 1, sharey=True)
    for panel, (key, (name, unit)) in zip(axes, COLUMNS.items()):
        for index, row in enumerate(rows):
            if score := row.get(key):
                mean, deviation = unit * score["mean"], unit * score["deviation"]
                panel.errorbar(mean, index, xerr=deviation, fmt="o", color=COLORS[0])
        panel.set_xlabel(name)
    for index, row in enumerate(rows):
        if "rouge" in row:
            score = row["rouge"]["rougeL"]
            around = np.abs(np.array(score["interval"]) - score["mean"])
            axes[-1].errorbar(score["mean"], index, xerr=around[:, None], fmt="o", color=COLORS[0])
    axes[-1].set_xlabel("ROUGE-L of summaries")
    # Its perplexity is far outside.
    axes[0].axvline(100 * floor_row["sst2"]["mean"], color="gray", linestyle="--")
    axes[-1].axvline(floor_row["rouge"]["rougeL"]["mean"], color="gray", linestyle="--")
    axes[0].set_yticks(range(len(rows)), [OBJECTIVES[row["objective"]].label for row in rows])
    axes[0].invert_yaxis()
    for panel in axes:
        panel.grid(axis="x", alpha=0.3)
    save(figure, path)


if __name__ == "__main__":
    main()
