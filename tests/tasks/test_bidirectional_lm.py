"""ELMo's objective: rows of both orders, resume with the carry, meshes, learning and uses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import build_gpt
from tests.jitted import jitted
from tests.training.test_carry import updated
from tests.training.test_loop import resumed_bit_equal
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.contracts.task import Context
from transformer_jax.data.tokenizers.words import Words
from transformer_jax.runs.spec import make_task
from transformer_jax.training.step import Program

MODEL = dict(
    name="elmo",
    vocab_size=24,
    d_model=8,
    lstm_width=8,
    max_characters=10,
    character_width=4,
    filters=((1, 4), (2, 4)),
    dropout=0.1,
)


def build(folder, **overrides):
    """Returns a tiny ELMo's config; overrides are written model__dropout=0.1."""
    config = configs.experiment(model=MODEL, task=dict(name="bidirectional_lm", length=6))
    other = build_gpt(folder, data__tokenizer="words", data__mask_documents=True)
    for section in ("data", "train", "optimizer", "checkpoint", "decode"):
        config[section] = other[section]
    for key, value in overrides.items():
        configs.set_key(config, key.replace("__", "."), value)
    configs.validate(config)
    return config


def stream_of(task, rows, way):
    """Returns (tokens, labels, restarts) of a stream in one direction, over all its rows."""
    table = {tuple(unit): i for i, unit in enumerate(rows.component.characters.tolist())}
    parts = [rows.batch(step, [0], 1) for step in range(rows.num_batches(1))]
    units = np.concatenate([part["tokens"][0, :, way] for part in parts]).tolist()
    labels, restarts = (
        np.concatenate([part[name][0, :, way][part["weights"][0, :, way] > 0] for part in parts])
        for name in ("labels", "restarts")
    )
    return [table[tuple(unit)] for unit in units][: len(labels)], labels.tolist(), restarts


def test_each_direction_predicts_every_word_once(tmp_path):
    """Forward the next words of the text; backward, from its end on, the previous ones."""
    task = make_task(build(tmp_path))
    rows = task.rows().eval["valid"]
    size, end = rows.component.store.meta["tokens"], task.tokenizer.eos_id
    text = [end, *rows.component.store.read([(0, size)])[0].tolist()]
    assert text[-1] == end
    for way, order in enumerate((1, -1)):
        tokens, labels, restarts = stream_of(task, rows, way)
        assert tokens == text[::order][:-1] and labels == text[::order][1:]
        np.testing.assert_array_equal(restarts, np.array(tokens) == end)


@pytest.mark.full
def test_updates_continue_both_streams(tmp_path):
    """Without learning, the losses of three updates are those of one row three times as long."""
    config = build(tmp_path, optimizer__learning_rate=1e-30, model__dropout=0.0)
    task = make_task(config)
    state, losses = updated(config, task, 3)
    parts = [task.rows().train.batch(step, range(8)) for step in range(3)]
    whole = {name: np.concatenate([part[name] for part in parts], 1) for name in parts[0]}
    assert whole["restarts"][:, 0].all() and 0 < whole["restarts"].mean() < 0.5
    params = jax.tree.map(jnp.asarray, state.params)
    loss = jitted(task.loss)(params, whole, Context(carry=task.initial_carry(8)))
    assert float(loss.terms["loss"]) / whole["labels"].size == pytest.approx(np.mean(losses))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), loss.carry, state.carry)


@pytest.mark.full
def test_meshes_and_accumulation_have_the_same_losses(tmp_path):
    # Adam would enlarge the rounding of gradients near zero.
    exact = dict(model__dropout=0.0, optimizer__name="sgd", optimizer__learning_rate=0.1)
    config = build(tmp_path, **exact)
    one, losses = updated(config, make_task(config), 3)
    mesh = dict(train__accumulation=2, mesh__fsdp=2)
    config = build(tmp_path, **exact, **mesh)
    many, of_many = updated(config, make_task(config), 3, 2)
    np.testing.assert_allclose(of_many, losses, atol=1e-5, rtol=0)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), many.carry, one.carry)


@pytest.mark.full
def test_a_run_that_stops_resumes_with_its_carry(tmp_path):
    """State and metrics are bit-equal to those of a straight run."""
    last = 4
    keys = dict(num_steps=last, log_every=2, eval_every=2)
    config = build(
        tmp_path,
        task__length=48,
        checkpoint__every=1,
        checkpoint__keep=9,
        **{f"train__{name}": value for name, value in keys.items()},
    )
    task = make_task(config)
    assert task.rows().train.phases[0].num_segments < last  # the streams begin anew
    program = Program.of(config, task, jax.devices()[:2])
    expected = resumed_bit_equal(config, task, program, tmp_path, (1, 3))
    assert all(x.any() for x in jax.tree.leaves(expected.carry))


@pytest.mark.full
def test_one_batch_can_be_overfitted_and_the_text_gives_features(tmp_path):
    sizes = dict(model__d_model=32, model__lstm_width=32, model__dropout=0.0)
    config = build(tmp_path, data__mask_documents=False, train__batch=4, **sizes)
    task = make_task(config)
    batch = {name: jnp.array(x) for name, x in task.rows().train.batch(0, range(4)).items()}
    program = Program.of(config, task, jax.devices()[:1])
    params = overfitted(task, program, batch)
    loss = jitted(task.loss)(params, batch, Context(carry=task.initial_carry(4)))
    assert float(loss.terms["loss"]) / batch["labels"].size < 0.05
    texts = ["the cat", "", "unknown sat"]
    features = list(task.features(params, texts, (0, 1, -1)))
    pieces = [["<end>", *text.split(), "<end>"] for text in texts]
    assert [words for words, _ in features] == pieces
    assert [states.shape for _, states in features] == [(3, len(words), 32) for words in pieces]
    [(_, other)] = task.features(params, ["otherone sat"], (0,))
    assert (other[0, 1] != features[2][1][0, 1]).any()  # both are unknown to the vocabulary
    np.testing.assert_allclose(features[0][1][0, :, :16], features[0][1][0, :, 16:])


def overfitted(task, program, batch):
    """Returns parameters after many updates on one batch."""

    def mean_loss(params):
        loss = jitted(task.loss)(params, batch, Context(carry=task.initial_carry(4)))
        return loss.terms["loss"] / batch["labels"].size

    @jax.jit
    def update(params, state):
        gradients = jax.grad(mean_loss)(params)
        updates, state = program.tx.update(gradients, state, params)
        return jax.tree.map(jnp.add, params, updates), state

    from transformer_jax.training.step import init_params

    params = init_params(task)
    state = program.tx.init(params)
    for _ in range(300):
        params, state = update(params, state)
    return params


def test_evaluate_gives_the_perplexity_of_both_directions(tmp_path):
    from transformer_jax.training.step import init_params

    task = make_task(build(tmp_path))
    scores = task.evaluate(init_params(task), "valid")
    assert scores["loss"] == pytest.approx((scores["forward_loss"] + scores["backward_loss"]) / 2)
    assert scores["perplexity"] == pytest.approx(np.exp(scores["loss"]))
    assert scores["forward_perplexity"] == pytest.approx(np.exp(scores["forward_loss"]))


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(model__name="recurrent"), "is for a model with two directions, such as elmo"),
        (dict(data__tokenizer="characters"), "a Characters tokenizer has no words .* 'words'"),
        (dict(model__max_characters=4), "max_characters=4: must be at least 8"),
        (dict(decode__stride=2), "config.decode.stride=2: not with"),
        (dict(task__length=1), "config.task.length=1: must be"),
    ],
)
def test_bad_keys_are_refused(changes, message, tmp_path):
    config = build(tmp_path)
    for key, value in changes.items():
        if key == "model__name":
            config = configs.experiment(
                model=dict(name=value), task=config.task.to_dict(), data=config.data.to_dict()
            )
        else:
            configs.set_key(config, key.replace("__", "."), value)
    with pytest.raises(UserError, match=message) as error:
        make_task(config).rows()
    assert "\n" not in str(error.value)


def test_words_are_spelled_as_bytes_between_special_characters():
    words = Words.train(["naïve cats", "cats"], 20, cased=True)
    spelled = words.spelled(8)
    [[cats, other]] = spelled.encode(["cats Überlänge"])
    assert cats == (259, *(ord(c) + 1 for c in "cats"), 260, 261, 261)
    assert other == (259, *(byte + 1 for byte in "Überlänge".encode()[:6]), 260)
    assert spelled.pieces([list(cats), spelled.eos_id]) == ["cats", "<end>"]
    assert spelled.table[words.encode("cats")[0]].tolist() == list(cats)
    assert tuple(spelled.table[words.eos_id]) == spelled.eos_id == (259, 258, 260, *[261] * 5)
    assert spelled.files() == words.files()
