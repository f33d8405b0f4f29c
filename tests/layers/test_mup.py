"""muP: the factors of table 8, initial values, and what they leave as it is."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import transformer_jax
from tests.training.test_optimizer import section
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.layers.embeddings import Projection
from transformer_jax.layers.mup import Growth
from transformer_jax.layers.parameters import Traits, names
from transformer_jax.runs.spec import make_task, resolve
from transformer_jax.training import optimizer

TINY = {
    "model.vocab_size": 300,
    "model.d_model": 32,
    "model.num_layers": 2,
    "model.num_heads": 2,
    "model.max_length": 32,
    "task.length": 16,
    "task.sample_tokens": 0,
    "train.batch": 8,
    "train.num_steps": 2,
}


def gpt(**keys):
    return configs.load("gpt/quickstart", [*TINY.items(), *keys.items()])


def with_base(config, base):
    configs.set_key(config, "optimizer.base", base)
    return config


# {kind: (its growth, m)}. The inputs have grown by 4 and the outputs by 2, where they have.
KINDS = {
    "table": (Growth(1, 2, (1, 8)), 1),
    "hidden": (Growth(4, 2, (8, 8)), 1),
    "head": (Growth(4, 1, (8, 3)), 1 / 4),
    "finite": (Growth(1, 1, (8, 3)), 1),
}
# {optimizer: {kind: rate of W}}, table 8 of the paper.
RATES = {
    "adam": {"table": 1, "hidden": 1 / 4, "head": 1, "finite": 1},
    "sgd": {"table": 2, "hidden": 1 / 2, "head": 4, "finite": 1},
}
# The factor of Adam's epsilon is that of the gradients of W, which fall with the width of the
# outputs, because the gradient of each activation does, or with m.
EPSILON = {"table": 1 / 2, "hidden": 1 / 2, "head": 1 / 4, "finite": 1}


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_stored_product_moves_as_w_with_its_own_multiplier(name, kind):
    """Updates of W, used as m W with the rate of table 8, equal those of the stored m W."""
    (growth, m), rate = KINDS[kind], RATES[name][kind]
    base = section(name=name, learning_rate=0.1, **({"eps": 1e-3} if name == "adam" else {}))
    target = jax.random.normal(jax.random.key(0), (3, 5))

    def loss(product):
        return jnp.sum((product - target) ** 2)

    w = jax.random.normal(jax.random.key(1), (3, 5))
    explicit = {
        "adam": optax.adam(0.1 * rate, eps=base.eps * EPSILON[kind]),
        "sgd": optax.sgd(0.1 * rate, momentum=base.momentum),
    }[name]
    task = types.SimpleNamespace(
        group=lambda path: "", depth=lambda path: None, growths={("w",): growth}
    )
    stored = optimizer.make(base, 10, task, {"w": Traits((None, None))})

    @jax.jit
    def updated(w):
        """Returns W and the stored product after four updates."""
        product = {"w": m * w}
        state, own_state = explicit.init(w), stored.init(product)
        for _ in range(4):
            change, state = explicit.update(jax.grad(lambda w: loss(m * w))(w), state, w)
            grads = jax.grad(lambda params: loss(params["w"]))(product)
            changes, own_state = stored.update(grads, own_state, product)
            w, product = w + change, optax.apply_updates(product, changes)
        return w, product

    w, product = updated(w)
    np.testing.assert_allclose(product["w"], m * w, rtol=2e-5)


def test_queries_carry_the_scale_of_attention():
    """Scores of 1 / d in all: of a scale of 1 / sqrt(d), or of none as in T5, the rest."""

    def query(config) -> Growth:
        growths = make_task(config).growths
        (path,) = (x for x in growths if x[-3:] == ("attention", "query", "kernel"))
        return growths[path]

    usual = query(with_base(gpt(**{"model.d_model": 128}), {"d_model": 32}))
    assert (usual.queries, usual.multiplier, usual.deviation) == (2, 1 / 2, 1 / 2 * 4**-0.5)
    assert usual.rate("adam") == 1 / 2 * 1 / 4
    model = {"model.num_encoder_layers": 1, "model.num_decoder_layers": 1}
    model |= {"model.head_dim": 32, "optimizer.name": "adamw", "optimizer.learning_rate": 1e-3}
    model |= {"optimizer.warmup_steps": 0}
    t5 = configs.load("t5/quickstart", model)
    growths = make_task(with_base(t5, {"head_dim": 8})).growths
    queries = {growth.queries for path, growth in growths.items() if "query" in path}
    assert queries == {4}


def test_an_update_of_muon_has_the_spectral_norm_of_the_condition():
    """It grows by sqrt(outputs / inputs) (Yang, Simon & Bernstein 2023)."""
    config = section(name="muon", learning_rate=1.0)
    norms = {}
    for width in (16, 64):
        shapes = {"wi": (width, 4 * width), "wo": (4 * width, width)}
        shapes |= {"in": (8, width), "out": (width, 8)}
        traits = {name: Traits((None, None), inputs=1) for name in shapes}
        growths = {}
        for name, shape in shapes.items():
            base = tuple(16 * size // width if size > 8 else size for size in shape)
            growths[name,] = Growth(shape[0] / base[0], shape[1] / base[1], base)
        task = types.SimpleNamespace(
            group=lambda path: "", depth=lambda path: None, growths=growths
        )
        tx = optimizer.make(config, 10, task, traits)
        params = {name: np.random.default_rng(0).normal(size=shapes[name]) for name in shapes}
        updates, _ = jax.jit(lambda x, tx=tx: tx.update(x, tx.init(x), x))(params)
        norms[width] = {name: np.linalg.norm(x, 2) for name, x in updates.items()}
    ratios = {name: norms[64][name] / norms[16][name] for name in norms[16]}
    # Muon's polynomial makes singular values of about 1, between 0.7 and 1.2.
    assert ratios == pytest.approx({"wi": 1, "wo": 1, "in": 2, "out": 1 / 2}, rel=0.3)


def test_growths_and_initial_values_of_a_wide_gpt():
    task = make_task(with_base(gpt(**{"model.d_model": 128}), {"d_model": 32}))
    growths = {"/".join(path): growth for path, growth in task.growths.items()}
    layers = "decoder/layers"
    assert growths["token_embed/embedding"] == Growth(1, 4, (1, 300 * 32))
    assert growths[f"{layers}/attention/query/kernel"] == Growth(4, 4, (32, 32), queries=2)
    assert growths[f"{layers}/attention/key/kernel"] == Growth(4, 4, (32, 32))
    assert growths[f"{layers}/mlp/wo/kernel"] == Growth(4, 4, (128, 32))
    assert growths[f"{layers}/mlp_norm/scale"] == Growth(1, 4, (1, 32))

    def deviations(config) -> dict[str, float]:
        params = jax.device_get(make_task(config).traced_init(jax.random.key(3)))
        leaves = jax.tree_util.tree_leaves_with_path(params)
        return {"/".join(names(path)): float(np.std(x)) for path, x in leaves}

    wide = deviations(with_base(gpt(**{"model.d_model": 128}), {"d_model": 32}))
    narrow = deviations(gpt())
    for name, of_narrow in narrow.items():
        expected = of_narrow * growths[name].deviation
        assert wide[name] == pytest.approx(expected, rel=1e-2, abs=1e-9), name


def test_at_the_widths_of_the_base_muP_changes_no_bit():
    params = {}
    for name, base in (("standard", ()), ("muP", {"d_model": 32})):
        state, step, batch_of = transformer_jax.make_step(with_base(gpt(), base))
        for number in range(2):
            state = step(state, batch_of(number))
        params[name] = jax.device_get(state.params)
    jax.tree.map(np.testing.assert_array_equal, params["standard"], params["muP"])


def test_logits_have_the_multiplier_and_finite_tables_have_none():
    config = with_base(gpt(**{"model.d_model": 128}), {"d_model": 32})
    model = make_task(config).model
    tokens = jnp.arange(8)[None]

    @jax.jit
    def logits():
        params = model.init(jax.random.key(0), tokens)
        return model.apply(params, tokens), model.clone(base_width=None).apply(params, tokens)

    ours, plain = logits()
    np.testing.assert_allclose(ours, plain / 4, rtol=1e-5)

    # Neither has a bias, whose width is finite.
    biased = Projection(jnp.ones((300, 128)), jnp.ones(300))
    output = model.multiplied(biased)
    assert float(output.table[0, 0]) == 1 / 4 and float(output.bias[0]) == 1

    albert = configs.load("albert/quickstart", [("optimizer.base", {"d_model": 64})])
    assert albert.model.d_embed != albert.model.d_model
    model = make_task(albert).model
    table = jnp.zeros((albert.model.vocab_size, albert.model.d_embed))
    assert model.multiplied(Projection(table)).table is table


@pytest.mark.parametrize(
    "keys, message",
    [
        ({"optimizer.base": {"d_modell": 16}}, "has no key 'd_modell'; did you mean d_model?"),
        ({"optimizer.base": {"d_model": "wide"}}, "must hold widths"),
        ({"optimizer.base": {"d_model": 16}, "optimizer.name": "lion"}, "muP knows the optimizers"),
        (
            {"optimizer.base": {"d_model": 33}},
            "num_heads=2 does not divide config.model.d_model=33",
        ),
        ({"optimizer.base": {"num_layers": 1}}, "num_layers is no width that grows"),
        ({"optimizer.base": {"d_model": 16}, "model.base_width": 8}, "leave it out"),
        ({"optimizer.base": {"vocab_size": 30}}, "vocab_size is no width that grows"),
        ({"optimizer.base": {"init_std": 1}}, "no parameter grows"),
        (
            {"optimizer.groups": (("a", (("base", ()),)),)},
            "config.optimizer has no key 'base' for a group",
        ),
    ],
)
def test_mistakes(keys, message):
    with pytest.raises(UserError, match=message):
        assert make_task(gpt(**keys)).growths


def test_a_family_of_unknown_sums_is_refused():
    config = configs.load("recurrent/quickstart", [("optimizer.base", {"d_model": 64})])
    with pytest.raises(UserError, match="muP does not know config.model.name='recurrent_seq2seq'"):
        assert make_task(config).growths


@pytest.fixture(scope="module")
def run_in_mup(tmp_path_factory):
    """The workdir of a run of two updates in muP, whose width is twice the base's."""
    workdir = tmp_path_factory.mktemp("mup") / "run"
    transformer_jax.train(with_base(gpt(), {"d_model": 16}), workdir)
    return workdir


def test_a_run_in_mup_is_opened_with_its_multiplier_and_not_exported(run_in_mup, tmp_path):
    task, params = transformer_jax.open_run(run_in_mup)
    assert task.model.base_width == 16
    with pytest.raises(UserError, match="Hugging Face's classes have none of muP's factors"):
        transformer_jax.to_hf(task, params, tmp_path / "hf")


@pytest.mark.parametrize(
    "keys, message",
    [
        ({}, "has muP with the base d_model=16, and this run none"),
        ({"optimizer.base": {"d_model": 8}}, "has muP with the base d_model=16, and this run d_mo"),
        ({"optimizer.base": {"d_model": 16}}, None),
        ({"init_from": "", "model.base_width": 16}, "needs config.optimizer.base"),
    ],
)
def test_a_run_starts_from_one_with_the_same_base(run_in_mup, tmp_path, keys, message):
    config = gpt(**{"init_from": str(run_in_mup)} | keys)
    if message is None:
        assert resolve(config, tmp_path / "run").config.model.base_width == 16
    else:
        with pytest.raises(UserError, match=message):
            resolve(config, tmp_path / "run")


def test_fine_tuning_keeps_the_multiplier_and_has_its_own_rates(run_in_mup, tmp_path):
    (tmp_path / "train.tsv").write_text("label\ttext\n" + "a\tone two\nb\tthree\n" * 8)
    files = {f"data.{split}_files": tmp_path / "train.tsv" for split in ("train", "valid")}
    keys = {"init_from": str(run_in_mup), "task.length": 16, "model.max_length": 32} | files
    config = configs.load("finetune/sentiment", {key: str(x) for key, x in keys.items()})
    assert resolve(config, tmp_path / "run").config.model.base_width == 16
    with pytest.raises(UserError, match="leave it out for fine-tuning"):
        resolve(with_base(config, {"d_model": 16}), tmp_path / "run")
