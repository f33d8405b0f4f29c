"""A new kind of data with a new objective: one source file and one task file, and no edit."""

import json

import jax
import numpy as np
import pytest

import transformer_jax
from transformer_jax import config as configs
from transformer_jax import convert, families, records, tasks
from transformer_jax.config import UserError
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task

SOURCE = '''
import dataclasses
import hashlib
import numpy as np
from transformer_jax.contracts.source import Source
from transformer_jax.data.store import Record


@dataclasses.dataclass
class Pictures(Source):
    """Stripes, or a user's own files of pixels."""

    side: int = 4  # pixels of a side
    count: int = 24  # pictures of a split

    def fingerprint(self, split):
        if not self.data[f"{split}_files"]:
            return None if split == "test" else [split, self.side, self.count]
        return [hashlib.sha256(open(path, "rb").read()).hexdigest() for path in self.files(split)]

    def read(self, split):
        for path in self.files(split) if self.data[f"{split}_files"] else ():
            pixels = np.fromfile(path, np.uint8).reshape(-1, self.side**2)
            yield from (Record(row.tobytes(), {"label": 0}) for row in pixels)
            return
        for number in range(self.count):
            picture = np.indices((self.side, self.side))[number % 2] % 2 * (1 + number % 7)
            yield Record(picture.astype(np.uint8).tobytes(), {"label": number % 2})
'''

TASK = '''
import dataclasses

import jax.numpy as jnp
import numpy as np

from transformer_jax import config as configs
from transformer_jax.losses import cross_entropy
from transformer_jax.objectives.texts import SourceTask
from transformer_jax.contracts.task import Loss


class _Rows:
    """The pixels of a picture; weight 0 is given to the rows that fill the last batch."""

    def __init__(self, records):
        self.records = records

    def __len__(self):
        return len(self.records)

    def rows(self, numbers):
        pictures = self.records.read([number for number, _ in numbers])
        weight = np.ones((), np.int32)
        return [{"tokens": picture.astype(np.int32), "weight": weight} for picture in pictures]


@dataclasses.dataclass
class PixelLM(SourceTask):
    """The next pixel, as iGPT predicts it (Chen et al. 2020)."""

    coefficients = {"loss": 1.0}

    def __post_init__(self):
        self.model = configs.build_model(self.config)

    def component(self, records):
        return _Rows(records)

    def batch_spec(self, row_shape):
        return self.int32_spec({"tokens": (self.source.side**2,), "weight": ()})

    def init(self, rng):
        return self.model.init(rng, jnp.zeros((1, 4), jnp.int32))["params"]

    def weights(self, batch):
        return {"loss": batch["weight"].sum().astype(jnp.float32) * self.positions(0)}

    def loss(self, params, batch, context):
        tokens = batch["tokens"]
        hidden = self.model.apply({"params": params}, tokens[:, :-1], method="hidden")
        table, bias = self.model.apply({"params": params}, method="output")
        weights = jnp.broadcast_to(batch["weight"][:, None], tokens[:, 1:].shape)
        weights = weights.astype(jnp.float32)
        loss = cross_entropy(hidden, table, bias, tokens[:, 1:], weights)[0]
        count = weights.sum()
        return Loss({"loss": loss}, {"loss": (loss, count), "filled": (count, count)})

    def flops(self, row_shape):
        return 3 * self.model.flops(self.source.side**2)

    def positions(self, row_shape):
        return self.source.side**2 - 1
'''

FAMILY = """
from transformer_jax.families import gpt
from transformer_jax.huggingface.family import Family


class Pixels(Family):
    model = "gpt"

    def sections(self, folder):
        return {"source": {"name": "stripes", "side": 5}}


GPT2 = next(family for family in gpt.ARCHITECTURES if family.architecture == "GPT2LMHeadModel")
ARCHITECTURES = [Pixels("PixelGPT", "pixels", GPT2.keys, GPT2.tensors, "pixel_lm")]
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Returns the config of the guests, which two files in a folder of their own define."""
    folder = tmp_path_factory.mktemp("guests")
    with pytest.MonkeyPatch.context() as patch:
        for package, name, content in (
            (records, "stripes", SOURCE),
            (tasks, "pixel_lm", TASK),
            (families, "pixels", FAMILY),
        ):
            (folder / name).mkdir()
            (folder / name / f"{name}.py").write_text(content)
            patch.setattr(package, "__path__", [*package.__path__, str(folder / name)])
        yield configs.experiment(
            model=dict(name="gpt", vocab_size=8, d_model=16, num_layers=1, num_heads=2),
            task=dict(name="pixel_lm"),
            source=dict(name="stripes", side=5),
            data=dict(cache=str(folder / "cache")),
            train=dict(num_steps=30, batch=8, log_every=15, eval_every=30),
            optimizer=dict(learning_rate=3e-2),
            decode=dict(batch=16),
        )


@pytest.mark.full
def test_a_task_without_a_tokenizer_is_trained_and_used(config, tmp_path, capsys):
    run = tmp_path / "run"
    scores = transformer_jax.train(config, run)
    assert scores["valid/loss"] < 1.0
    longer = transformer_jax.train(config, run, overrides={"train.num_steps": 31})
    assert longer["valid/loss"] < 1.0
    recorded = json.loads((run / "config.json").read_text())
    assert recorded["config"]["source"] == {"name": "stripes", "side": 5, "count": 24}
    assert recorded["fingerprint"] == {"train": ["train", 5, 24], "tokenizer": None}
    task, params = open_run(run)
    assert task.evaluate(params, "valid")["loss"] == pytest.approx(longer["valid/loss"], rel=1e-5)
    _, _, tokenizer = transformer_jax.load(run)
    assert tokenizer is None and not (run / "tokenizer").exists()
    convert.to_hf(run, tmp_path / "hf")
    assert {path.suffix for path in (tmp_path / "hf").iterdir()} == {".json", ".safetensors"}
    convert.from_hf(tmp_path / "hf", tmp_path / "back")
    jax.tree.map(np.testing.assert_array_equal, open_run(tmp_path / "back")[1], params)
    with pytest.raises(UserError, match="source.side: 5 -> 4"):
        transformer_jax.train(config, run, overrides={"source.side": 4})


def test_a_users_own_files_replace_the_built_in_data(config, tmp_path):
    pixels = np.arange(50, dtype=np.uint8) % 8
    pixels.tofile(tmp_path / "mine.bin")
    changed = configs.from_record(config.to_dict(), "a test")
    configs.set_key(changed, "data.train_files", str(tmp_path / "mine.bin"))
    rows = make_task(changed).rows().train.batch(0, range(2))
    assert sorted(rows["tokens"].tolist()) == sorted(pixels.reshape(2, 25).tolist())


def test_a_task_that_reads_texts_takes_no_source(config):
    changed = configs.experiment(
        model=dict(name="gpt"), task=dict(name="causal_lm"), source=dict(name="stripes")
    )
    with pytest.raises(UserError, match="config.source.name='stripes': .*'causal_lm' reads config"):
        make_task(changed)
    changed = configs.experiment(model=dict(name="gpt"), task=dict(name="pixel_lm"))
    with pytest.raises(UserError, match="config.source.name is missing: .*there are: .*stripes"):
        make_task(changed)


@pytest.mark.full
def test_files_outside_the_package_with_reader_processes(config, tmp_path):
    """The rows of two processes are those of one, also where a path names the classes."""
    files = {"task": tmp_path / "pixels.py", "source": tmp_path / "stripes.py"}
    files["task"].write_text(TASK)
    files["source"].write_text(SOURCE)
    sections = config.to_dict()
    sections["task"] = {"name": str(files["task"])}
    sections["source"] = {"name": str(files["source"]), "side": 5}
    results = []
    for readers in (0, 2):
        sections["data"]["readers"] = readers
        run = tmp_path / f"run-{readers}"
        transformer_jax.train(configs.experiment(**sections), run, overrides={"train.num_steps": 6})
        results.append(open_run(run, task_file=files["task"], source_file=files["source"])[1])
    jax.tree.map(np.testing.assert_array_equal, *results)
    with pytest.raises(UserError, match="name it with --config.source.name=FILE"):
        open_run(run, task_file=files["task"])
