"""Codes of images: convolutions, codes, a run that resumes, a mesh, and a GPT on the codes."""

import shutil

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.jitted import jitted
from tests.tasks.conftest import trained
from tests.training.test_loop import final_state, lines, resumed_bit_equal
from tests.training.test_step import losses
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.distributed import sharding
from transformer_jax.families.vqvae import VQAutoencoder, image_tokens
from transformer_jax.layers.convolutions import neighbourhoods
from transformer_jax.runs import spec
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task, resolve
from transformer_jax.training.step import Program
from transformer_jax.training.trainer import run

pytest.importorskip("sklearn")
SIZES = dict(image_size=8, patch_size=2, channels=1, d_model=16, num_layers=1)
MODEL = dict(name="vqvae", num_codes=16, d_code=4, **SIZES)
IMAGES = jax.random.randint(jax.random.key(2), (3, 8, 8, 1), 0, 256).astype(jnp.uint8)


def build(folder, **keys):
    config = configs.experiment(
        model=MODEL,
        task=dict(name="vqvae"),
        source=dict(name="digits"),
        data=dict(cache=str(folder / "cache")),
        train=dict(num_steps=3, batch=8, log_every=1, eval_every=3),
        optimizer=dict(learning_rate=1e-2),
        checkpoint=dict(every=1),
        decode=dict(batch=64),
    )
    for key, value in keys.items():
        configs.set_key(config, key.replace("__", "."), value)
    return config


def build_gpt(folder, autoencoder, **keys):
    config = configs.experiment(
        model=dict(name="gpt", vocab_size=26, d_model=16, num_layers=2, num_heads=4, max_length=16)
        | dict(dropout=0.0, attention_dropout=0.0),
        task=dict(name="image_token_lm", autoencoder=str(autoencoder)),
        source=dict(name="digits"),
        data=dict(cache=str(folder / "cache")),
        train=dict(num_steps=3, batch=8, log_every=1, eval_every=3),
        optimizer=dict(learning_rate=1e-2),
        checkpoint=dict(every=1),
        decode=dict(batch=64),
    )
    for key, value in keys.items():
        configs.set_key(config, key.replace("__", "."), value)
    return config


@pytest.fixture(scope="module")
def codes(tmp_path_factory):
    """Returns the folder of a run of vqvae, which is resumed, and compared on a mesh."""
    folder = tmp_path_factory.mktemp("codes")
    config = build(folder)
    task = make_task(config)
    program = Program.of(config, task, jax.devices()[:1])
    (folder / "straight").mkdir()
    spec.begin(config, task, folder / "straight")
    resumed_bit_equal(config, task, program, folder, [2])
    one = [line["train/loss"] for line in lines(folder / "straight") if "train/loss" in line]
    mesh = dict(train__accumulation=2, mesh__fsdp=2)
    many, _ = losses(build(folder, **mesh), 3, devices=2)
    np.testing.assert_allclose(many, one, atol=1e-5, rtol=0)
    return folder


def test_the_product_with_neighbours_is_a_convolution():
    x = jax.random.normal(jax.random.key(0), (2, 4, 5, 3))
    kernel = jax.random.normal(jax.random.key(1), (3, 3, 3, 6))
    numbers = ("NHWC", "HWIO", "NHWC")
    expected = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)
    actual = jnp.einsum("bghijm,ijmf->bghf", neighbourhoods(x), kernel)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_codes_and_the_straight_through_gradient():
    model = VQAutoencoder(num_codes=5, d_code=4, **SIZES)
    apply = jitted(model.apply)
    params = jax.device_get(nn.unbox(jax.jit(model.init)(jax.random.key(0), IMAGES)))["params"]
    result = jax.device_get(apply({"params": params}, IMAGES, method="autoencoded"))
    numbers = np.asarray(apply({"params": params}, IMAGES, method="codes"))
    distances = np.sum((result.encoded[:, :, None] - params["codes"]) ** 2, axis=-1)
    np.testing.assert_array_equal(numbers, distances.argmin(axis=-1))
    np.testing.assert_array_equal(result.vectors, params["codes"][numbers])
    decoded = np.asarray(apply({"params": params}, numbers, method="images_of"))
    expected = np.clip(np.rint(255 * (result.reconstruction * 0.5 + 0.5)), 0, 255)
    assert decoded.dtype == np.uint8 and np.abs(decoded - expected).max() <= 1

    def error(params):
        result = model.apply({"params": params}, IMAGES, method="autoencoded")
        return jnp.square(result.pixels - result.reconstruction).sum()

    gradients = jax.jit(jax.grad(error))(params)
    assert not gradients["codes"].any() and gradients["to_code"]["kernel"].any()


def test_images_are_reconstructed_and_the_codes_are_used(codes, capsys):
    task, params = open_run(codes / "straight")
    scores = task.evaluate(params, "valid")
    assert 1 < scores["perplexity"] <= scores["used"] <= 16 and 0 < scores["loss"] < 5
    coder = task.coder(params)
    numbers = coder.codes(np.asarray(IMAGES))
    assert numbers.shape == (3, 16) and coder.images(numbers).shape == IMAGES.shape
    assert len(task.result(params, []).axes) >= 2
    with pytest.raises(UserError, match="config.task.commitment=-1.0: must be at least 0"):
        make_task(build(codes, task__commitment=-1.0))


@pytest.mark.full
def test_a_few_images_can_be_overfitted(tmp_path):
    """The same eight images in each update."""
    path = tmp_path / "eight.npz"
    np.savez(path, images=np.random.default_rng(0).integers(0, 2, (8, 8, 8, 1), np.uint8) * 255)
    config = build(tmp_path, source__name="digits", train__num_steps=200, train__log_every=200)
    sections = config.to_dict() | {"source": {"name": "images"}}
    config = configs.experiment(**sections)
    for key in ("train", "valid"):
        configs.set_key(config, f"data.{key}_files", str(path))
    configs.set_key(config, "checkpoint.every", 200)
    configs.set_key(config, "train.eval_every", 200)
    scores = trained(config, tmp_path).scores
    assert scores["valid/loss"] < 0.3  # 1 without training


@pytest.mark.full
def test_a_gpt_learns_the_codes_resumes_and_has_equal_losses_on_a_mesh(codes, tmp_path):
    """The autoencoder stays as it is, in frozen/. A resumed run no longer needs its run."""
    source = tmp_path / "codes"
    shutil.copytree(codes / "straight", source)
    workdir, resumed = tmp_path / "straight", tmp_path / "resumed"
    resolved = resolve(build_gpt(codes, source), workdir)
    config, task = resolved.config, resolved.task()
    program = Program.of(config, task, jax.devices()[:1])
    workdir.mkdir()
    spec.begin(config, task, workdir)
    run(config, task, workdir, program, origin=resolved.origin)
    shutil.copytree(workdir, resumed)
    shutil.rmtree(resumed / "checkpoints" / "3")
    shutil.rmtree(source)
    resolved = resolve(build_gpt(codes, source), resumed)
    run(resolved.config, resolved.task(), resumed, program, origin=resolved.origin)
    assert lines(workdir) == lines(resumed)
    ends = [final_state(each, config, program, 3).params for each in (workdir, resumed)]
    jax.tree.map(np.testing.assert_array_equal, *ends)
    _, frozen = open_run(codes / "straight", "latest")
    best = open_run(codes / "straight")[1]
    jax.tree.map(np.testing.assert_array_equal, ends[0]["autoencoder"], best)
    assert frozen.keys() == best.keys()

    task, params = open_run(resumed)
    drawn = task.samples(params, ["3", "7"], seed=1)
    np.testing.assert_array_equal(drawn, task.samples(params, ["3", "7"], seed=1))
    assert drawn.shape == (2, 8, 8, 1) and drawn.dtype == np.uint8
    assert (drawn != task.samples(params, ["3", "7"], seed=2)).any()
    assert len(task.result(params, ["3"]).axes) == 8
    assert 1 < task.evaluate(params, "test")["perplexity"] < 100
    with pytest.raises(UserError, match="'x' is not a class of the run's images; there are: 0, 1"):
        task.samples(params, ["x"])


@pytest.mark.parametrize(
    "keys, message",
    [
        (dict(model__vocab_size=16), "config.model.vocab_size=16: must be more than the 16 codes"),
        (dict(model__vocab_size=20), "config.model.vocab_size=20: must be at least 26"),
        (dict(model__max_length=8), "config.model.max_length=8: must be at least 16"),
        (dict(task__autoencoder=""), "config.task.autoencoder is missing"),
    ],
)
def test_refusals(keys, message, codes, tmp_path):
    with pytest.raises(UserError, match=message):
        resolve(build_gpt(codes, codes / "straight", **keys), tmp_path / "run").task().rows()


class EqualCodes(nn.Module):
    """A causal model for which all of `num_codes` codes are equally likely."""

    num_codes: int

    def hidden(self, inputs):
        return jnp.zeros((*inputs.tokens.shape, 1))

    def logits(self, state):
        return jnp.zeros((len(state), self.num_codes))


def test_each_position_of_an_image_has_random_numbers_of_its_own():
    params = {"unused": np.zeros(1)}
    placement = sharding.Placement.of(
        params, configs.experiment(model=MODEL, task=dict(name="vqvae")).mesh
    )
    sampler = image_tokens.CodeSampler(EqualCodes(1000), num_codes=1000, length=6)
    drawn = sampler(params, np.zeros(2, np.int32), placement, seed=0, temperature=1.0)
    # 12 draws of 1,000 equally likely codes: about 1 pair in 15 such tests would be equal, and
    # equal keys would make all positions of a row equal.
    assert all(len(set(row)) > 3 for row in drawn.tolist())
    assert not np.array_equal(drawn[0], drawn[1])
    again = sampler(params, np.zeros(2, np.int32), placement, seed=0, temperature=1.0)
    np.testing.assert_array_equal(drawn, again)
