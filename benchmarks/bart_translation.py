"""BART with a new encoder of German, on Multi30k (Lewis et al. 2019, section 3.4).

    python benchmarks/bart_translation.py --data=DIR --json=benchmarks/results/bart_translation.json

Budget on 2 quiet cores: {budget}

DIR holds multi30k/ (train, val and test_2016_flickr, .de and .en) and imdb/unsup.txt. Runs are
written to runs/bart_multi30k. A run that was stopped continues, and one that has ended is not
repeated, so the cases may be measured one by one, --case=CASE, and the JSON file written at the end
of all. The English BART never reads German, nor English that the translations do not also learn
from, except for the reviews.
"""

import dataclasses
import functools
import itertools
import json
import pathlib
import time

import numpy as np
from harness import main

import transformer_jax
from transformer_jax import config as configs
from transformer_jax.runs.open import open_run
from transformer_jax.scores import predictions, texts

CONFIG = "configs/bart/multi30k.py"
RUNS = pathlib.Path("runs")
REVIEWS = 12_000  # of 50,000: more tokens than the pre-training reads of them
TINY = {
    "train.num_steps": 20,
    "model.d_model": 16,
    "model.d_ff": 32,
    "model.num_heads": 2,
    "train.batch": 4,
    "decode.beam": 1,
}
# Estimated minutes of each case on 2 quiet cores.
MINUTES = {"pretraining": 24, "two_stages": 15, "no_pretraining": 15, "difference": 1}
SYSTEMS = {
    "two_stages": {},
    "no_pretraining": {"train.pretrained": False, "optimizer.groups": ()},
}


def pretraining(tiny: bool, data: str):
    """The English BART, on captions and reviews."""
    run = Run("pretraining", tiny, pathlib.Path(data))
    yield {
        "case": "English BART",
        "ours": run.result()["valid/perplexity"],
        "unit": "perplexity of captions",
        "minutes": run.result()["minutes"],
    }


def translation(system: str, tiny: bool, data: str):
    """BLEU of the test set."""
    run = Run(system, tiny, pathlib.Path(data))
    measure, statistics = texts.Bleu(), run.statistics()
    yield {
        "case": system,
        "ours": predictions.scores(measure, statistics)["bleu"],
        "unit": "BLEU",
        "interval": predictions.intervals(measure, statistics)["bleu"],
        "signature": run.result()["signature"],
        "minutes": run.result()["minutes"],
    }


def difference(tiny: bool, data: str):
    """The difference of both BLEU, by paired bootstrap."""
    both = (Run(system, tiny, pathlib.Path(data)).statistics() for system in SYSTEMS)
    compared = predictions.comparison(texts.Bleu(), *both)["bleu"]
    yield {
        "case": " less ".join(SYSTEMS),
        "ours": compared["difference"],
        "unit": "BLEU",
        "interval": compared["interval"],
        "p_value": compared["p_value"],
    }


@dataclasses.dataclass(frozen=True)
class Run:
    """One of the three runs, trained and measured when its result is first asked for."""

    name: str
    tiny: bool
    data: pathlib.Path

    @property
    def workdir(self) -> pathlib.Path:
        return RUNS / ("bart_multi30k_tiny" if self.tiny else "bart_multi30k") / self.name

    def result(self) -> dict:
        """Returns the last scores, the minutes and, of a translation, the translated test set.

        The minutes are those of the session that ended the run.
        """
        path = self.workdir / "result.json"
        if not path.exists():
            is_translation = self.name in SYSTEMS
            overrides = self._pairs() if is_translation else self._texts()
            part = "translate" if is_translation else "pretrain"
            overrides |= TINY if self.tiny else {}
            started = time.monotonic()
            config = configs.load(f"{CONFIG}:{part}", overrides=overrides)
            result = transformer_jax.train(config, self.workdir)
            result |= self._translated() if is_translation else {}
            minutes = (time.monotonic() - started) / 60
            path.write_text(json.dumps(result | {"minutes": minutes}))
        return json.loads(path.read_text())

    def statistics(self) -> np.ndarray:
        """Returns the statistics of BLEU of each translation of the test set."""
        return texts.Bleu().statistics(self.result()["outputs"], self.result()["references"])

    def _translated(self) -> dict:
        task, params = open_run(self.workdir, "latest")
        pairs = task.texts.text("test")
        outputs, references = task.translated_pairs(params, pairs, 20 if self.tiny else None)
        signature = texts.signatures(outputs, references, "en")["bleu_signature"]
        return {"outputs": outputs, "references": references, "signature": signature}

    def _pairs(self) -> dict:
        folder = self.data / "multi30k"
        pretrained = Run("pretraining", self.tiny, self.data)
        pretrained.result()
        return (
            SYSTEMS[self.name]
            | {
                f"data.{split}_{side}": str(folder / f"{name}.{language}")
                for split, name in (
                    ("train", "train"),
                    ("valid", "val"),
                    ("test", "test_2016_flickr"),
                )
                for side, language in (("source", "de"), ("target", "en"))
            }
            | {"init_from": str(pretrained.workdir)}
        )

    def _texts(self) -> dict:
        """Writes the English documents, with blank lines between them."""
        folder = self.workdir.parent / "texts"
        folder.mkdir(parents=True, exist_ok=True)
        for name, split in (("captions", "train"), ("valid", "val")):
            captions = (self.data / "multi30k" / f"{split}.en").read_text().splitlines()
            (folder / f"{name}.txt").write_text("\n\n".join(captions) + "\n")
        with (self.data / "imdb" / "unsup.txt").open() as lines:
            reviews = itertools.islice(_documents(lines), 50 if self.tiny else REVIEWS)
            (folder / "reviews.txt").write_text("\n\n".join(reviews) + "\n")
        files = tuple((str(folder / f"{name}.txt"), 1) for name in ("captions", "reviews"))
        return {"data.mixture": files, "data.valid_files": str(folder / "valid.txt")}


def _documents(lines):
    """Yields the texts between empty lines."""
    for is_text, document in itertools.groupby(lines, lambda line: bool(line.strip())):
        if is_text:
            yield "".join(document).strip()


if __name__ == "__main__":
    main(
        __doc__.format(budget=", ".join(f"{name} {n} minutes" for name, n in MINUTES.items())),
        {
            "pretraining": pretraining,
            **{system: functools.partial(translation, system) for system in SYSTEMS},
            "difference": difference,
        },
        ("jax", "jaxlib", "flax"),
        given=("data", "folder of multi30k/ and imdb/"),
    )
