"""A modality is one folder with its model, task, source and rows, and nothing else is edited."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import config as configs
from transformer_jax import families
from transformer_jax.config import UserError
from transformer_jax.contracts.task import Context
from transformer_jax.runs.spec import make_task

FILES = {
    "__init__.py": '''
from jaxtyping import Array, Float

from transformer_jax.contracts.model import SignalEncoder, takes_inputs
from transformer_jax.families.guest_rolls.rolls import RollInputs
from transformer_jax.layers.parameters import Linear


class PianoRoll(SignalEncoder):
    """Frames (B, T, P) -> logits of the next frames (B, T, P)."""

    modality = "rolls"
    reads = RollInputs
    num_layers = 0

    pitches: int = 8  # keys of the piano

    def setup(self):
        self.following = Linear((self.pitches,), (self.pitches,), axes=("embed", None))

    @takes_inputs
    def __call__(self, inputs: RollInputs, *, train: bool = False) -> Float[Array, "B T P"]:
        return self.hidden(inputs, train=train)

    @takes_inputs
    def hidden(self, inputs: RollInputs, *, train: bool = False) -> Float[Array, "B T P"]:
        return self.following(inputs.rolls)

    @takes_inputs
    def layers(self, inputs: RollInputs) -> Float[Array, "N B T P"]:
        return self.hidden(inputs)[None]

    def flops(self, length: int, predictions: int = 0) -> float:
        return 2.0 * length * self.pitches**2
''',
    "rolls.py": """
import flax.struct
import numpy as np
from jaxtyping import ArrayLike, Float

from transformer_jax.contracts.model import Inputs


@flax.struct.dataclass
class RollInputs(Inputs):
    rolls: Float[ArrayLike, "B T P"] | None = None


class Rolls:
    def __init__(self, records, pitches):
        self.records, self.pitches = records, pitches

    def __len__(self):
        return len(self.records)

    def rows(self, numbers):
        contents = self.records.read([number for number, _ in numbers])
        return [
            {"rolls": each.reshape(-1, self.pitches).astype(np.int32), "weight": np.int32(1)}
            for each in contents
        ]
""",
    "sources/guest_scales.py": '''
import dataclasses

import numpy as np

from transformer_jax.contracts.source import Source
from transformer_jax.data.store import Record


@dataclasses.dataclass
class Scales(Source):
    """Scales that go up."""

    keys: int = 8  # keys of the piano

    def fingerprint(self, split):
        return [split, self.keys]

    def read(self, split):
        for first in range(self.keys):
            roll = np.roll(np.eye(self.keys, dtype=np.uint8), -first, axis=0)
            yield Record(roll.tobytes(), {"first": first})
''',
    "tasks/guest_frames.py": '''
import dataclasses

import jax.numpy as jnp
import optax

from transformer_jax.config import build_model
from transformer_jax.contracts.task import Loss
from transformer_jax.families.guest_rolls.rolls import Rolls
from transformer_jax.objectives.texts import SourceTask


@dataclasses.dataclass
class NextFrames(SourceTask):
    """Predicts each frame from the frame before it."""

    modality = "rolls"
    coefficients = {"loss": 1.0}

    frames: int = 8  # frames of a row

    def __post_init__(self):
        self.model = build_model(self.config)

    def component(self, records):
        return Rolls(records, self.model.pitches)

    def batch_spec(self, row_shape):
        return self.int32_spec({"rolls": (self.frames, self.model.pitches), "weight": ()})

    def init(self, rng):
        return self.model.init(rng, jnp.zeros((1, 2, self.model.pitches)))["params"]

    def weights(self, batch):
        return {"loss": batch["weight"].sum().astype(jnp.float32)}

    def loss(self, params, batch, context):
        rolls = batch["rolls"].astype(jnp.float32)
        logits = self.model.apply({"params": params}, rolls[:, :-1], train=context.train)
        losses = optax.sigmoid_binary_cross_entropy(logits, rolls[:, 1:]).mean(axis=(1, 2))
        count = batch["weight"].sum()
        return Loss({"loss": losses.sum()}, {"loss": (losses.sum(), count)})

    def flops(self, row_shape):
        return 3 * self.model.flops(self.frames)

    def positions(self, row_shape):
        return self.frames - 1
''',
    "tasks/_shared.py": "raise ImportError('only the named file is imported')\n",
    "tasks/others.py": "raise ImportError('only the named file is imported')\n",
}
SECTIONS = dict(
    model=dict(name="guest_rolls"), task=dict(name="guest_frames"), source=dict(name="guest_scales")
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Returns a folder of modalities, which is a part of `families`, with one modality."""
    for name, content in FILES.items():
        path = tmp_path / "families/guest_rolls" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path / "families")])
    yield tmp_path / "families"
    for name in [name for name in sys.modules if ".families.guest_rolls" in name]:
        del sys.modules[name]
    vars(families).pop("guest_rolls", None)


def test_a_folder_brings_its_model_task_and_source(folder, tmp_path):
    assert "guest_rolls" in configs.class_names("model")
    assert {"guest_frames", "others"} < {*configs.class_names("task")}
    assert "_shared" not in configs.class_names("task")
    assert "guest_scales" in configs.class_names("source")
    assert "transformer_jax.families.guest_rolls" not in sys.modules  # a list imports no file
    sections = SECTIONS | dict(data=dict(cache=str(tmp_path / "cache")), train=dict(batch=4))
    config = configs.experiment(**sections)
    configs.validate(config)
    assert configs.get(config, "task.frames") == configs.get(config, "source.keys") == 8
    assert configs.meaning("model.pitches", *configs.chosen(config)) == "keys of the piano"
    task = make_task(config)
    batch = task.rows().train.batch(0, range(4))
    assert batch["rolls"].shape == (4, 8, 8) and np.all(batch["rolls"].sum(axis=2) == 1)
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), task.param_shapes)
    batch = jax.tree.map(jnp.asarray, batch)
    loss = jax.eval_shape(lambda: task.loss(params, batch, Context(train=True)))
    assert loss.terms["loss"].shape == ()


def test_a_model_of_another_modality_is_refused(folder):
    config = configs.experiment(**SECTIONS | dict(model=dict(name="vit")))
    with pytest.raises(UserError, match="'vit': reads images, and .*'guest_frames' gives rolls"):
        make_task(config)


@pytest.mark.parametrize("section, name", [("task", "ctc"), ("source", "fasta")])
def test_a_name_that_two_files_have_is_refused(folder, section, name):
    file = folder / "guest_rolls" / f"{section}s" / f"{name}.py"
    file.write_text("")
    assert configs.class_names(section).count(name) == 1
    with pytest.raises(UserError, match=f"config.{section}.name='{name}': .*/{name}.py and {file}"):
        configs.named_class(section, name)


def test_a_file_and_a_folder_with_the_name_of_a_model_are_refused(folder):
    (folder / "guest_rolls.py").write_text("")
    with pytest.raises(UserError, match="guest_rolls.py and .*__init__.py have this name; rename"):
        configs.named_class("model", "guest_rolls")


def test_no_two_files_of_the_package_have_the_same_name():
    for section in configs.NAMED_SECTIONS:
        for name in configs.class_names(section):
            assert configs.class_module(section, name)
