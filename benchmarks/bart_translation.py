"""BART with a new encoder of German, on Multi30k (Lewis et al. 2019, section 3.4).

    python benchmarks/bart_translation.py --data=DIR --json=benchmarks/results/bart_translation.json

Budget on 2 quiet cores: {budget}

DIR holds multi30k/ (train, val and test_2016_flickr, .de and .en) and imdb/unsup.txt. Runs are
written to runs/bart_multi30k; a part that was stopped continues, and one that is finished is not
repeated. The English BART never reads German, nor English that the translations do not also learn
from, except for the reviews.
"""

import itertools
import json
import pathlib
import time

from harness import main

import transformer_jax
from transformer_jax import config as configs
from transformer_jax.runs.open import open_run
from transformer_jax.scores import bleu, bootstrap

CONFIG = "configs/bart/multi30k.py"
RUNS = pathlib.Path("runs")
REVIEWS = 12_000  # of 50,000: as many tokens as the pre-training reads
TINY = {
    "train.num_steps": 20,
    "model.d_model": 16,
    "model.d_ff": 32,
    "model.num_heads": 2,
    "train.batch": 4,
    "decode.beam": 1,
}
# Minutes of each part on 2 quiet cores.
MINUTES = {"pre-training": 24, "two stages": 24, "no pre-training": 24}
SYSTEMS = {
    "two stages": {},
    "no pre-training": {"train.pretrained": False, "optimizer.groups": ()},
}


def pretraining(tiny: bool, data: str):
    """The English BART, on captions and reviews."""
    texts = _texts(tiny, pathlib.Path(data))
    overrides = {
        "data.mixture": tuple((str(texts / f"{name}.txt"), 1) for name in ("captions", "reviews")),
        "data.valid_files": str(texts / "valid.txt"),
    }
    scores = _trained(tiny, "pretrain", "pre-training", overrides)
    yield {
        "case": "English BART",
        "ours": scores["valid/perplexity"],
        "unit": "perplexity of captions",
        "minutes": scores["minutes"],
    }


def translation(tiny: bool, data: str):
    """Translation with and without pre-training: BLEU of the test set, and their difference."""
    folder = pathlib.Path(data) / "multi30k"
    files = {
        f"data.{split}_{side}": str(folder / f"{name}.{language}")
        for split, name in (("train", "train"), ("valid", "val"), ("test", "test_2016_flickr"))
        for side, language in (("source", "de"), ("target", "en"))
    }
    measure = bleu.Bleu()
    statistics = {}
    for system, overrides in SYSTEMS.items():
        begin = {"init_from": str(_run(tiny, "pre-training"))}
        scores = _trained(tiny, "translate", system, files | begin | overrides)
        task, params = open_run(_run(tiny, system), "latest")
        pairs = task.texts.text("test")
        translated = task.translated_pairs(params, pairs, 20 if tiny else None)
        statistics[system] = measure.statistics(*translated)
        yield {
            "case": system,
            "ours": bootstrap.scores(measure, statistics[system])["bleu"],
            "unit": "BLEU",
            "interval": bootstrap.intervals(measure, statistics[system])["bleu"],
            "signature": bleu.signatures(*translated, "en")["bleu_signature"],
            "updates": task.config.train.num_steps,
            "minutes": scores["minutes"],
        }
    of_both = bootstrap.comparison(measure, *statistics.values())["bleu"]
    yield {
        "case": "two stages less no pre-training",
        "ours": of_both["difference"],
        "unit": "BLEU",
        "interval": of_both["interval"],
        "p_value": of_both["p_value"],
    }


def _texts(tiny: bool, data: pathlib.Path) -> pathlib.Path:
    """Writes the English documents, with blank lines between them. Returns their folder."""
    folder = _run(tiny, "texts")
    folder.mkdir(parents=True, exist_ok=True)
    for name, split in (("captions", "train"), ("valid", "val")):
        captions = (data / "multi30k" / f"{split}.en").read_text().splitlines()
        (folder / f"{name}.txt").write_text("\n\n".join(captions) + "\n")
    with (data / "imdb" / "unsup.txt").open() as lines:
        reviews = itertools.islice(_documents(lines), 50 if tiny else REVIEWS)
        (folder / "reviews.txt").write_text("\n\n".join(reviews) + "\n")
    return folder


def _documents(lines):
    for is_text, document in itertools.groupby(lines, lambda line: bool(line.strip())):
        if is_text:
            yield "".join(document).strip()


def _run(tiny: bool, name: str) -> pathlib.Path:
    folder = "bart_multi30k_tiny" if tiny else "bart_multi30k"
    return RUNS / folder / name.replace(" ", "_")


def _trained(tiny: bool, part: str, name: str, overrides: dict) -> dict[str, float]:
    """Trains a run, or continues it. Returns its last scores and the minutes of all its sessions.

    The minutes of a session that did not end are not known.
    """
    workdir = _run(tiny, name)
    result = workdir / "result.json"
    if not result.exists():
        started = time.monotonic()
        config = configs.load(CONFIG + f":{part}", overrides=overrides | (TINY if tiny else {}))
        scores = transformer_jax.train(config, workdir)
        minutes = (time.monotonic() - started) / 60
        result.write_text(json.dumps(scores | {"minutes": minutes}))
    return json.loads(result.read_text())


if __name__ == "__main__":
    main(
        __doc__.format(budget=", ".join(f"{name} {n} minutes" for name, n in MINUTES.items())),
        {"pretraining": pretraining, "translation": translation},
        ("jax", "jaxlib", "flax"),
        data="folder of multi30k/ and imdb/",
    )
