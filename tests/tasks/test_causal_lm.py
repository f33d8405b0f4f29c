"""Training, writing and scoring text with a tiny language model."""

import itertools
import math
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import build_gpt as build
from tests.training.test_step import losses as first_losses
from transformer_jax.config import UserError
from transformer_jax.inference import sampling
from transformer_jax.inference.sampling import Sampling
from transformer_jax.runs import (
    begin,
    record,  # record
)
from transformer_jax.runs.open import open_run
from transformer_jax.runs.resolve import make_task
from transformer_jax.runs.train import train
from transformer_jax.training import batches
from transformer_jax.training import state as states
from transformer_jax.training.loop import Program, run

GREEDY = Sampling(temperature=0)
GOLDEN = [5.729919, 5.611233, 5.428472]
PROMPTS = ["the ", "a dog", "", "the dog sat. a cat ran to the"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("causal_lm")
    config = build(folder)
    task, workdir = make_task(config), folder / "run"
    workdir.mkdir()
    record.begin(config, task, workdir)
    found = run(config, task, workdir, Program.of(config, task, jax.devices()[:1]))
    return workdir, found, *open_run(workdir)


def test_it_learns_and_measures(trained):
    _, found, task, params = trained
    assert found["valid/loss"] < 2.5
    meta = task.rows().eval["valid"].component.store.meta
    assert found["valid/perplexity"] == pytest.approx(math.exp(found["valid/loss"]))
    assert found["valid/bits_per_byte"] == pytest.approx(
        found["valid/loss"] * meta["tokens"] / meta["bytes"] / math.log(2)
    )
    assert found["valid/bits_per_character"] == found["valid/bits_per_byte"]  # all ASCII


def test_the_stride_of_an_evaluation_is_stated(trained):
    workdir, found, task, params = trained
    scores = {
        stride: open_run(workdir, overrides=[("decode.stride", str(stride))])[0].evaluate(
            params, "valid"
        )
        for stride in (32, 8)
    }
    assert [scores[s]["stride"] for s in (32, 8)] == [32, 8] and scores[32]["tokens"] == scores[8][
        "tokens"
    ]
    assert scores[32]["loss"] == pytest.approx(found["valid/loss"], rel=1e-5)
    assert scores[8]["loss"] != scores[32]["loss"]
    with pytest.raises(UserError, match="config.data.test_files"):
        task.evaluate(params, "test")


def test_the_measured_loss_is_that_of_every_token_in_turn(trained):
    """By hand: stride 1 is each token given the 32 before it."""
    workdir, _, _, params = trained
    task, _ = open_run(workdir, overrides=[("decode.stride", "1")])
    text = (workdir.parent / "valid.txt").read_text().split("\n\n")
    ids = [
        task.tokenizer.eos_id,
        *itertools.chain.from_iterable(
            [*found, task.tokenizer.eos_id] for found in task.tokenizer.encode(text)
        ),
    ]
    apply = jax.jit(lambda tokens: jax.nn.log_softmax(task.model.apply({"params": params}, tokens)))
    total = 0.0
    for position in range(1, len(ids)):
        context = ids[max(position - 32, 0) : position]
        total -= float(
            apply(jnp.array([context + [0] * (32 - len(context))]))[
                0, len(context) - 1, ids[position]
            ]
        )
    assert task.evaluate(params, "valid")["loss"] == pytest.approx(total / (len(ids) - 1), rel=1e-5)


def by_whole_prefixes(task, params, prompt, max_tokens):
    ids = task.tokenizer.encode([prompt])[0] or [task.tokenizer.eos_id]
    start = len(ids)
    apply = jax.jit(lambda tokens: task.model.apply({"params": params}, tokens))
    while len(ids) < start + max_tokens:
        token = int(apply(jnp.array([ids + [0] * (64 - len(ids))]))[0, len(ids) - 1].argmax())
        if token == task.tokenizer.eos_id:
            break
        ids.append(token)
    return task.tokenizer.decode([ids[start:]])[0]


def test_greedy_text_is_that_of_whole_prefixes_in_any_batch(trained):
    workdir, _, task, params = trained
    expected = [by_whole_prefixes(task, params, prompt, 20) for prompt in PROMPTS]
    assert [
        found.text for found in task.generate(params, PROMPTS, max_tokens=20, how=GREEDY)
    ] == expected
    assert len(set(expected)) > 1 and all(expected)
    for batch in (1, 3):
        other, _ = open_run(workdir, overrides=[("decode.batch", str(batch))])
        assert [
            found.text for found in other.generate(params, PROMPTS, max_tokens=20, how=GREEDY)
        ] == expected


def test_equal_seeds_give_equal_text_in_any_batch_and_other_seeds_other_text(trained):
    workdir, _, task, params = trained
    write = lambda task, **options: [
        found.text for found in task.generate(params, PROMPTS, max_tokens=16, **options)
    ]
    first = write(task, seed=3)
    assert first == write(task, seed=3) != write(task, seed=4)
    assert first == write(open_run(workdir, overrides=[("decode.batch", "1")])[0], seed=3)
    seen = []
    assert first == write(task, seed=3, watch=seen.append)  # looking on the way changes nothing
    assert len(seen) >= 2 and all(
        last.startswith(before) for before, last in zip(seen[0], seen[-1])
    )


def test_a_stop_string_ends_a_text(trained):
    _, _, task, params = trained
    whole = next(task.generate(params, ["the "], max_tokens=30, how=GREEDY))
    stop = whole.text[5:8]
    cut = next(task.generate(params, ["the "], max_tokens=30, how=GREEDY, stop=["never", stop]))
    assert (
        cut.text == whole.text[: whole.text.find(stop)]
        and cut.finished == "stop"
        and cut.tokens <= whole.tokens
    )
    assert next(task.generate(params, ["the "], max_tokens=3, how=GREEDY)).finished == "length"


def test_too_long_a_prompt_is_named(trained):
    _, _, task, params = trained
    with pytest.raises(
        UserError, match="prompt 2: its .* tokens and 30 more exceed config.model.max_length=64"
    ):
        list(task.generate(params, ["the", "the dog " * 40], max_tokens=30, window="refuse"))


def test_sampling_draws_from_what_is_allowed():
    logits = jnp.log(jnp.array([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]]))
    keys = jax.random.split(jax.random.key(0), 4000).reshape(2000, 2)

    def shares(how, seen=None):
        drawn = np.asarray(jax.vmap(lambda key: how.draw(logits, seen, key))(keys))
        return [np.bincount(drawn[:, row], minlength=4) / 2000 for row in range(2)]

    close = lambda found, expected: np.testing.assert_allclose(found, expected, atol=0.04)
    close(shares(Sampling())[0], [0.4, 0.3, 0.2, 0.1])
    close(shares(Sampling(top_k=2))[1], [0, 0, 3 / 7, 4 / 7])
    close(shares(Sampling(top_p=0.65))[0], [4 / 7, 3 / 7, 0, 0])
    # the token that crosses the line is in
    close(shares(Sampling(top_p=0.71))[0], [4 / 9, 3 / 9, 2 / 9, 0])
    close(shares(Sampling(temperature=0.5))[0], np.array([16, 9, 4, 1]) / 30)
    close(shares(Sampling(temperature=0))[1], [0, 0, 0, 1])
    # 0.4^2 : 0.3 : 0.2 : 0.1, as log-probabilities are negative
    seen = jnp.array([[True, False, False, False], [False] * 4])
    close(shares(Sampling(repetition_penalty=2.0), seen)[0], np.array([0.16, 0.3, 0.2, 0.1]) / 0.76)
    for wrong in (
        dict(temperature=-1),
        dict(top_p=0),
        dict(top_p=1.1),
        dict(top_k=-1),
        dict(repetition_penalty=0),
    ):
        with pytest.raises(UserError):
            Sampling(**wrong)


def test_every_token_has_its_share_of_the_numbers_drawn():
    draw = np.random.default_rng(0)
    weights = np.where(draw.random(1000) < 0.5, 0, draw.random(1000) ** 8).astype(np.float32)
    uniform = (np.arange(4000) + 0.5) / 4000
    found = np.bincount(
        sampling._drawn(jnp.tile(weights, (4000, 1)), jnp.array(uniform, jnp.float32)),
        minlength=1000,
    )
    np.testing.assert_allclose(found, 4000 * weights / weights.sum(), atol=1.01)
    edges = sampling._drawn(jnp.tile(weights, (2, 1)), jnp.array([0, 1 - 2**-23], jnp.float32))
    assert (weights[edges] > 0).all() and not found[weights == 0].any()


@pytest.mark.parametrize("top_p", [1e-6, 0.1, 0.5, 0.9, 0.999])
def test_the_nucleus_is_that_of_the_sorted_vocabulary(top_p):
    logits = np.random.default_rng(0).normal(0, 3, (40, 700)).round(1)  # with ties
    probabilities = np.asarray(jax.nn.softmax(logits))
    # than each token
    likelier = (probabilities[:, None] * (probabilities[:, None] > probabilities[..., None])).sum(
        -1
    )
    np.testing.assert_array_equal(
        sampling._nucleus(jnp.array(probabilities), top_p), likelier < top_p
    )


def test_a_repetition_penalty_counts_the_prompt(trained):
    _, _, task, params = trained
    plain, varied = (
        next(task.generate(params, ["the dog"], max_tokens=12, how=Sampling(penalty, 0))).text
        for penalty in (1.0, 1e6)
    )
    assert varied != plain
    found = [token for token in task.tokenizer.encode([varied])[0]]
    assert not set(found) & set(task.tokenizer.encode(["the dog"])[0])


def test_log_likelihoods_are_the_models(trained):
    _, _, task, params = trained
    pairs = [("the cat", " sat"), ("a", " dog ran to the cat"), ("", "the"), ("the ", "mat")]
    found = list(task.log_likelihoods(params, pairs))
    for (context, continuation), likelihood in zip(pairs, found):
        whole = task.tokenizer.encode([context + continuation])[0]
        start = len(task.tokenizer.encode([context.rstrip()])[0])
        inputs = whole if start else [task.tokenizer.eos_id, *whole]
        log_p = jax.nn.log_softmax(task.model.apply({"params": params}, jnp.array([inputs])))[0]
        expected = [
            (float(log_p[i - 1, inputs[i]]), int(log_p[i - 1].argmax()) == inputs[i])
            for i in range(max(start, 1), len(inputs))
        ]
        assert likelihood.log_prob == pytest.approx(sum(p for p, _ in expected), rel=1e-4)
        assert likelihood.greedy == all(
            right for _, right in expected
        ) and likelihood.tokens == len(expected)
    # loses the beginning of its context
    long = next(task.log_likelihoods(params, [("the dog " * 60, "sat")]))
    assert math.isfinite(long.log_prob)


def test_masked_documents_train_and_equal_documents_alone(tmp_path):
    config = build(
        tmp_path, data__mask_documents=True, model__dropout=0.0, model__attention_dropout=0.0
    )
    task = make_task(config)
    params = task.model.init(jax.random.key(0), jnp.zeros((1, 8), jnp.int32))["params"]
    batch = task.rows().train.batch(0, range(2))
    assert batch["segment_ids"].max() > 1 and set(batch) == set(task.batch_spec(0))
    sums, _ = task.loss(params, batch, None, train=False)
    one = []
    for row in range(2):
        for segment in range(1, batch["segment_ids"][row].max() + 1):
            own = batch["segment_ids"][row] == segment
            log_p = jax.nn.log_softmax(
                task.model.apply({"params": params}, batch["tokens"][row][own][None])
            )
            one.append(
                -np.take_along_axis(
                    np.asarray(log_p[0]), batch["labels"][row][own][:, None], -1
                ).sum()
            )
    assert float(sums["loss"]) == pytest.approx(sum(one), rel=1e-4)

    # a text stands behind the end of another, when it is scored, too
    ids = [task.tokenizer.eos_id, *task.tokenizer.encode(["the cat sat"])[0]]
    ((context, continuation),) = task._scorer.encoded([("the cat", " sat")])
    assert context + continuation == ids


@pytest.mark.parametrize(
    "pair, message",
    [
        (
            ([1, 300], [2]),
            r"pair 2: the id 300 is not from 0 to 299 \(config.model.vocab_size=300\)",
        ),
        (([1], [-1]), "pair 2: the id -1 is not"),
        (([], [1]), "pair 2: the context is empty"),
    ],
)
def test_ids_that_can_not_be_scored_are_refused(trained, pair, message):
    _, _, task, params = trained
    with pytest.raises(UserError, match=message):
        task.token_log_likelihoods(params, [([1], [2]), pair])


@pytest.mark.parametrize(
    "overrides, message",
    [
        (dict(task__length=65), "config.task.length=65"),
        (dict(decode__stride=33), "config.decode.stride=33"),
        (dict(data__tokenizer="characters", model__vocab_size=10), "model.vocab_size=10"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, overrides, message):
    with pytest.raises(UserError, match=message):
        make_task(build(tmp_path, **overrides)).tokenizer


def test_a_run_begins_from_another_and_says_what_it_took(trained, tmp_path, capsys):
    workdir, _, task, params = trained
    config = build(
        tmp_path, init_from=str(workdir), train__num_steps=1, optimizer__learning_rate=0.0
    )
    begun = make_task(config)
    assert begun.tokenizer.fingerprint() == task.tokenizer.fingerprint()
    (tmp_path / "run").mkdir()
    record.begin(config, begun, tmp_path / "run")
    run(config, begun, tmp_path / "run", origin=begin.origin(config, tmp_path / "run"))
    assert "tensors restored" in capsys.readouterr().err
    _, again = open_run(tmp_path / "run")
    jax.tree.map(np.testing.assert_array_equal, again, params)
    for overrides, message in (
        (dict(model__d_ff=48), r"mlp/wi/bias has shape \(2, 128\) there, \(2, 48\) in this config"),
        (dict(init_from=str(tmp_path / "none")), "no run here"),
    ):
        with pytest.raises(UserError, match=message):
            config = build(tmp_path / "other", **{"init_from": str(workdir), **overrides})
            train(config, tmp_path / "refused")


def test_what_fills_up_a_vocabulary_may_differ(trained, tmp_path):
    """As where GPT-2, converted, is gone on with by its config, which fills it up to a multiple of
    64.
    """
    workdir, _, task, params = trained
    size, before = task.model.vocab_size, params["token_embed"]["embedding"]
    for multiple, rows in ((size + 7, size + 7), (1, size)):
        config = build(
            tmp_path,
            init_from=str(workdir),
            train__num_steps=1,
            optimizer__learning_rate=0.0,
            model__vocab_multiple=multiple,
        )
        workdir = tmp_path / str(multiple)
        train(config, workdir)
        now = open_run(workdir)[1]["token_embed"]["embedding"]
        assert now.shape[0] == rows and not now[size:].any()
        np.testing.assert_array_equal(now[:size], before[:size])


def test_once_begun_a_run_needs_the_other_no_more(trained, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(trained[0], other)
    config = build(tmp_path, init_from=str(other), train__num_steps=2)
    train(config, tmp_path / "run")
    shutil.rmtree(other)
    config.train.num_steps = 3
    assert train(config, tmp_path / "run")["valid/loss"] > 0


def test_what_a_larger_model_adds_is_named_as_new(trained, tmp_path, capsys):
    workdir, _, _, _ = trained
    config = build(
        tmp_path, init_from=str(workdir), train__num_steps=1, model__norm_position="post"
    )
    train(config, tmp_path / "run")
    assert "2 dropped, not in this model: norm/bias, norm/scale" in capsys.readouterr().err


# the loop's promises, for this family


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    config = build(folder, train__accumulation=2, **SHARDED)
    return folder, first_losses(config)[0]


SHARDED = dict(model__vocab_multiple=8, model__local_window=8, data__mask_documents=True)


def test_golden_first_losses(reference):
    """float32 on CPU; a change here is a change of initialisation, data order, tokenizer or model."""
    np.testing.assert_allclose(reference[1], GOLDEN, rtol=1e-5)


@pytest.mark.parametrize(
    "mesh",
    [dict(data=4), dict(data=2, tensor=2), dict(fsdp=4), dict(data=2, fsdp=2, tensor=2)],
    ids=str,
)
def test_equal_losses_on_every_mesh(reference, mesh):
    """With dropout, accumulation, masked documents and a local window on."""
    folder, expected = reference
    config = build(
        folder,
        train__accumulation=2,
        **SHARDED,
        **{f"mesh__{axis}": size for axis, size in mesh.items()},
    )
    np.testing.assert_allclose(
        first_losses(config, devices=math.prod(mesh.values()))[0], expected, atol=1e-5, rtol=0
    )


def test_resuming_equals_running_straight_with_a_growing_batch_and_a_mixture(tmp_path):
    (tmp_path / "b.txt").write_text("\n\n".join(f"numbers {i} {i * i}." for i in range(80)))
    overrides = dict(
        data__train_files=None,
        data__mixture=((f"{tmp_path}/train.txt", 2), (f"{tmp_path}/b.txt", 1)),
        train__first_batch=2,
        train__ramp_steps=6,
        train__num_steps=8,
        train__log_every=4,
        train__eval_every=4,
        checkpoint__every=4,
    )

    def finish(folder, *stops):
        (tmp_path / folder).mkdir()
        for stop in stops:
            config = build(
                tmp_path,
                **{**overrides, "train__num_steps": stop, "optimizer__schedule": "constant"},
            )
            task = make_task(config)
            run(config, task, tmp_path / folder, Program.of(config, task, jax.devices()[:2]))
        return open_at(config, tmp_path / folder)

    straight, resumed = finish("straight", 8), finish("resumed", 5, 8)
    jax.tree.map(np.testing.assert_array_equal, straight, resumed)


def open_at(config, folder):
    from transformer_jax.training.checkpoint import Checkpoints
    from transformer_jax.training.state import abstract_params

    return Checkpoints(folder / "checkpoints", config.checkpoint, read_only=True).restore_params(
        abstract_params(make_task(config)), 8
    )


def test_one_batch_can_be_overfitted(tmp_path):
    config = build(tmp_path, model__dropout=0.0, model__attention_dropout=0.0, train__num_steps=150)
    task = make_task(config)
    program = Program.of(config, task, jax.devices()[:1])
    state = states.init(task, program.tx, program.state)
    batch = next(batches.stream(task.rows().train.batch, 8, 1, program.batch_sharding, 0, 1))
    for _ in range(150):
        state = program.train_step(
            state.replace(metrics=states.zeros(program.state.metrics)), batch
        )
    loss, count = state.metrics["loss"]
    assert float(loss) / float(count) < 0.1
