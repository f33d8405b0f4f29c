"""BERT's pre-training with a tiny model: two phases in one run, the losses, masks and features."""

import contextlib
import dataclasses
import itertools
import json
import math

import jax
import numpy as np
import pytest
import scipy.special

from tests.conftest import build_bert as build
from tests.jitted import jitted
from tests.programs import call
from tests.training.test_step import losses as first_losses
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.contracts.task import Context
from transformer_jax.data import texts
from transformer_jax.data.sources import text_files
from transformer_jax.inference import minimal_pairs
from transformer_jax.runs import spec
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task
from transformer_jax.training import step as states
from transformer_jax.training import trainer
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.step import Program
from transformer_jax.training.trainer import run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("masked_lm")
    config = build(folder)
    task, workdir = make_task(config), folder / "run"
    workdir.mkdir()
    spec.begin(config, task, workdir)
    scores = run(config, task, workdir, Program.of(config, task, jax.devices()[:1]))
    return workdir, scores, *open_run(workdir, "60")


def test_it_learns_and_measures(trained):
    _, last, task, params = trained
    assert last["valid/loss"] < 2.8 and last["valid/accuracy"] > 0.2
    assert 0 < last["valid/nsp_loss"] < 2
    scores = task.evaluate(params, "valid")
    for name in ("loss", "accuracy", "nsp_loss", "nsp_accuracy", "perplexity"):
        assert scores[name] == pytest.approx(last[f"valid/{name}"], rel=1e-5)
    assert 0 < scores["most_frequent"] < 0.5
    assert scores["rows"] == len(task.rows().eval["valid"]) >= 2000


def test_phases_have_their_shapes_and_one_state(trained):
    workdir, _, task, _ = trained
    train = task.rows().train
    assert [train.phase(step) for step in (0, 29, 30, 59)] == [(0, 0), (0, 29), (1, 0), (1, 29)]
    for step, phase in ((0, 0), (30, 1)):
        batch = train.batch(step, range(8))
        assert {name: (array.shape, array.dtype) for name, array in batch.items()} == {
            name: (spec.shape, spec.dtype) for name, spec in task.batch_spec(phase).items()
        }
        assert task.inputs(batch).padding_last
        assert set(batch["segment_ids"][:, 0]) == {1} and (np.diff(batch["segment_ids"]) <= 0).all()


def test_the_losses_are_those_of_all_positions(trained):
    """Logits are computed at masked positions only, but are those of the whole model."""
    _, _, task, params = trained
    batch = task.rows().eval["valid"].batch(0, range(8), 8)
    loss = jitted(task.loss)
    sums = loss(params, batch, Context()).terms
    hidden, logits, following = jitted(task.model.apply)({"params": params}, task.inputs(batch))
    log_p = scipy.special.log_softmax(logits, axis=-1)
    expected = sum(
        -log_p[row, position, label]
        for row in range(8)
        for position, label, weight in zip(
            batch["masked_positions"][row],
            batch["masked_labels"][row],
            batch["masked_weights"][row],
        )
        if weight
    )
    assert float(sums["mlm"]) == pytest.approx(expected, rel=1e-4)
    log_p = scipy.special.log_softmax(following, axis=-1)
    expected = -np.take_along_axis(log_p, 1 - batch["follows"][:, None], 1).sum()
    assert float(sums["nsp"]) == pytest.approx(expected, rel=1e-4)
    weights = task.weights({name: array[None] for name, array in batch.items()})
    assert weights["mlm"] == batch["masked_weights"].sum() and weights["nsp"] == 8
    padded = {
        name: np.concatenate([array, np.zeros_like(array[:3])]) for name, array in batch.items()
    }
    padded_sums = loss(params, padded, Context()).terms
    assert float(padded_sums["nsp"]) == pytest.approx(float(sums["nsp"]), rel=1e-5)
    assert task.weights(padded)["nsp"] == 8


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    return folder, first_losses(build(folder, train__accumulation=2))[0]


@pytest.mark.full
@pytest.mark.parametrize(
    "mesh", [dict(data=4), dict(data=2, tensor=2), dict(data=2, fsdp=2, tensor=2)], ids=str
)
def test_equal_losses_on_every_mesh(reference, mesh):
    folder, expected = reference
    overrides = {f"mesh__{axis}": size for axis, size in mesh.items()}
    config = build(folder, train__accumulation=2, **overrides)
    losses, *_ = first_losses(config, devices=math.prod(mesh.values()))
    np.testing.assert_allclose(losses, expected, atol=1e-5, rtol=0)


@pytest.mark.full
def test_accumulation_weighs_each_term_by_the_whole_batch(reference):
    folder, _ = reference
    options = dict(model__dropout=0.0, model__attention_dropout=0.0)
    accumulated, *_ = first_losses(build(folder, train__accumulation=4, **options))
    losses, *_ = first_losses(build(folder, **options))
    np.testing.assert_allclose(accumulated, losses, atol=1e-5, rtol=0)


@pytest.mark.full
def test_resuming_across_the_phases_equals_running_straight(tmp_path):
    def params_after(folder, *stops):
        # A run that is cut off has the phases and the schedule of 8 updates.
        for stop in stops:
            config = build(
                tmp_path,
                train__num_steps=8,
                checkpoint__every=1,
                train__log_every=4,
                train__eval_every=8,
            )
            task = make_task(config)
            if stop < 8:
                rows = task.rows().train
                object.__setattr__(rows, "batch", cut_off(rows.batch, stop))
            with contextlib.suppress(InterruptedError):
                run(config, task, tmp_path / folder, Program.of(config, task, jax.devices()[:1]))
        folder = tmp_path / folder / "checkpoints"
        checkpoints = Checkpoints(folder, config.checkpoint, read_only=True)
        return checkpoints.restore_params(states.abstract_params(task), 8)

    straight, resumed = params_after("straight", 8), params_after("resumed", 3, 6, 8)
    jax.tree.map(np.testing.assert_array_equal, straight, resumed)


def cut_off(read, stop):
    """Returns the function that reads batches, but raises InterruptedError at update `stop`."""

    def failing(step, indices):
        if step >= stop:
            raise InterruptedError
        return read(step, indices)

    return failing


@pytest.mark.full
def test_whole_rows_without_pairs(tmp_path):
    config = build(tmp_path, task__next_sentence=0.0, task__whole_words=True, train__num_steps=2)
    task = make_task(config)
    scores = run(config, task, tmp_path / "run")
    assert "valid/nsp_loss" not in scores and scores["valid/loss"] > 0
    assert task.group(("pooler", "kernel")) is None and task.group(("mlm_norm", "scale")) == ""
    batch = task.rows().train.batch(0, range(8))
    assert (batch["tokens"][:, 0] == task.tokenizer.cls_id).all()
    assert (batch["tokens"][:, -1] == task.tokenizer.sep_id).all()


def test_rare_tokens_are_preferred_in_training_alone(tmp_path, monkeypatch):
    """A later run reads the counts from the cache."""
    monkeypatch.setattr(text_files, "PART_BYTES", 1000)
    monkeypatch.setattr(texts, "_TOGETHER", 100)
    config = build(tmp_path, task__rare_words=0.5, task__next_sentence=0.0)
    rows = [make_task(config).rows() for _ in range(2)]
    masks = [phase.components[0].mask for each in rows for phase in each.train.phases]
    stored = rows[0].train.phases[0].components[0].store
    assert len(stored.parts) > 1
    (tokens,) = stored.read([(0, stored.meta["tokens"])])
    expected = np.maximum(np.bincount(tokens, minlength=len(masks[0].special)), 1) ** -0.5
    for mask in masks:
        np.testing.assert_array_equal(mask.weights, expected)
    assert rows[0].eval["valid"].component.mask.weights is None


def test_the_share_of_predicted_tokens_is_that_of_training_alone(tmp_path):
    phases = ((0.5, 20, 10), (0.5, 40, 12))
    keys = dict(task__next_sentence=0.0, task__phases=phases, train__num_steps=4)
    rows = make_task(build(tmp_path, **keys, task__selected=0.3)).rows()
    counts = [rows.train.batch(step, range(8))["masked_weights"].sum(axis=1) for step in (0, 3)]
    assert (counts[0] == 6).all() and (counts[1] == 12).all()
    keys["task__phases"] = ((0.5, 20, 10), (0.5, 40, 10))
    with pytest.raises(
        UserError, match="selected=0.3: of 40 tokens, these are 12, and config.task"
    ):
        make_task(build(tmp_path, **keys, task__selected=0.3))
    assert (rows.eval["valid"].batch(0, range(4), 4)["masked_weights"].sum(axis=1) == 6).all()


def test_masks_are_filled(trained):
    _, _, task, params = trained
    texts = ["the cat [MASK] on the mat", "a [MASK] ran to the [MASK]"]
    filled = list(task.fill(params, texts, top_k=3))
    assert [len(masks) for masks in filled] == [1, 2]
    for mask in itertools.chain.from_iterable(filled):
        probabilities = [filling.probability for filling in mask]
        assert len(probabilities) == 3 and 0 < sum(probabilities) <= 1
        assert probabilities == sorted(probabilities, reverse=True)
    ids = [task.tokenizer.cls_id, *task.tokenizer.encode_masked(texts[0]), task.tokenizer.sep_id]
    _, logits, _ = jitted(task.model.apply)({"params": params}, np.array([ids]))
    position = ids.index(task.tokenizer.mask_id)
    assert task.tokenizer.pieces([int(np.asarray(logits)[0, position].argmax())]) == [
        filled[0][0][0].word
    ]
    with pytest.raises(UserError, match=r"text 2: no \[MASK\]"):
        list(task.fill(params, ["a [MASK]", "none"]))


def test_programs_print_what_the_task_returns(trained):
    workdir, _, task, params = trained
    flags = [f"--workdir={workdir}", "--step=60"]
    text = "the cat [MASK] on [MASK]"
    (masks,) = task.fill(params, [text], top_k=2)
    done = call("fill_mask", *flags, "--top_k=2", f"--text={text}")
    assert done.stdout.splitlines() == [
        "  ".join(f"{filling.word} {filling.probability:.3f}" for filling in mask) for mask in masks
    ]
    printed = json.loads(call("fill_mask", *flags, "--top_k=2", "--json", text=text).stdout)
    assert [[entry["word"] for entry in mask] for mask in printed] == [
        [filling.word for filling in mask] for mask in masks
    ]
    refused = call("fill_mask", *flags, "--top_k=1000", f"--text={text}")
    assert refused.returncode == 2 and "the vocabulary has" in refused.stderr

    pair = "the cat sat\ta dog ran"
    (predicted,) = task.predict(params, [pair])
    done = call("predict", *flags, "--json", f"--text={pair}")
    assert json.loads(done.stdout) == predicted.details
    assert call("predict", *flags, text=pair).stdout == f"{predicted.text}\n"


def test_next_sentences_are_those_of_the_head(trained, capsys):
    _, _, task, params = trained
    tokenizer = task.tokenizer
    pairs = [("the cat sat", "a dog ran to the mat"), ("a dog", "a cat"), ("the mat", "ran")]
    probabilities = list(task.next_sentences(params, pairs))
    # Rows of different lengths share a batch, and each must equal its row alone.
    for pair, probability in zip(pairs, probabilities, strict=True):
        first, second = tokenizer.encode(list(pair))
        ids = [tokenizer.cls_id, *first, tokenizer.sep_id, *second, tokenizer.sep_id]
        types = [0] * (len(first) + 2) + [1] * (len(second) + 1)
        _, _, logits = jitted(task.model.apply)(
            {"params": params}, np.array([ids]), token_types=np.array([types])
        )
        assert probability == pytest.approx(scipy.special.softmax(logits[0])[0], rel=1e-4)
    assert next(task.next_sentences(params, [pairs[0][::-1]])) != pytest.approx(probabilities[0])

    lines = ["the cat sat\ta dog ran to the mat", "", f"a dog\t{'cat ' * 100}"]
    one, empty, long = task.predict(params, lines)
    label = "IsNext" if probabilities[0] > 0.5 else "NotNext"
    assert one.text == one.details["label"] == label
    assert one.details["probabilities"]["IsNext"] == pytest.approx(probabilities[0], rel=1e-4)
    assert sum(one.details["probabilities"].values()) == pytest.approx(1)
    assert empty.text == "" and empty.details["label"] is None and long.text
    assert "pair 3 is longer than config.model.max_length=64" in capsys.readouterr().err
    swapped = dataclasses.replace(task, second_text="sentence_order")
    assert next(swapped.predict(params, lines)).text in ("InOrder", "Swapped")
    assert [p is None for p in task.next_sentences(params, [("a", "cat " * 90)], long="skip")] == [
        True
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("the cat sat", "line 2: must hold 2 texts, separated by a tab, not 1"),
        ("a\tb\tc", "line 2: must hold 2 texts, separated by a tab, not 3"),
        ("a dog\t ", "line 2: must hold 2 texts, separated by a tab; one is empty"),
    ],
)
def test_lines_without_two_texts_are_refused(trained, line, message):
    _, _, task, params = trained
    with pytest.raises(UserError, match=message):
        list(task.predict(params, ["a dog\ta cat", line]))
    with pytest.raises(UserError, match="pair 1: must be two texts; one is empty"):
        list(task.next_sentences(params, [("a dog", "")]))


def test_a_run_without_pairs_predicts_no_next_sentence(trained):
    _, _, task, params = trained
    single = dataclasses.replace(task, next_sentence=0.0)
    with pytest.raises(UserError, match="config.task.next_sentence=0: .* without pairs"):
        single.predict(params, ["a dog\ta cat"])
    with pytest.raises(UserError, match="long='split': must be one of truncate, skip, refuse"):
        task.predict(params, ["a dog\ta cat"], long="split")


def test_features_are_the_hidden_states(trained):
    _, _, task, params = trained
    texts = ["the cat sat on the mat", "a dog"]
    features = list(task.features(params, texts, layers=(0, -1)))
    for text, (pieces, vectors) in zip(texts, features, strict=True):
        ids = [task.tokenizer.cls_id, *task.tokenizer.encode([text])[0], task.tokenizer.sep_id]
        assert pieces == task.tokenizer.pieces(ids) and vectors.shape == (2, len(ids), 32)
        hidden = jitted(task.model.apply)({"params": params}, np.array([ids]))[0]
        np.testing.assert_allclose(vectors[1], np.asarray(hidden)[0], rtol=1e-4, atol=1e-4)
    with pytest.raises(UserError, match="layer 3"):
        list(task.features(params, texts, layers=(3,)))
    with pytest.raises(UserError, match="text 1: .* config.model.max_length=64"):
        list(task.features(params, ["dog " * 100], long="refuse"))


def test_empty_and_long_texts(trained, capsys):
    _, _, task, params = trained
    sentence = "The cat [MASK] on the mat."
    long = f"{sentence} A dog sat. {sentence} The dog ran to [MASK] {'cat ' * 70} [MASK]."
    filled = list(task.fill(params, ["", "a [MASK] ran", long, " "], top_k=1))
    assert [len(masks) for masks in filled] == [0, 1, 4, 0]
    ((alone,),) = task.fill(params, [sentence], top_k=1)
    # A long text is read sentence by sentence.
    for mask in filled[2][:2]:
        assert mask[0].word == alone[0].word
        assert mask[0].probability == pytest.approx(alone[0].probability, rel=1e-4)
    output = capsys.readouterr().err
    assert "warning: text 3 is longer than config.model.max_length=64 tokens" in output
    assert [len(masks) for masks in task.fill(params, [long, "a [MASK]"], long="skip")] == [0, 1]
    with pytest.raises(UserError, match="text 2: longer than config.model.max_length=64"):
        list(task.fill(params, ["a [MASK]", long], long="refuse"))
    with pytest.raises(UserError, match="long='truncate': must be one of split, skip, refuse"):
        task.fill(params, [long], long="truncate")

    texts = ["", "dog " * 100, "a dog"]
    for way, counts in (("truncate", (2, 64, 4)), ("skip", (2, 0, 4))):
        features = list(task.features(params, texts, (0, -1), long=way))
        assert [len(pieces) for pieces, _ in features] == list(counts)
        assert [states.shape for _, states in features] == [(2, count, 32) for count in counts]
    assert features[0][0] == ["[CLS]", "[SEP]"]
    (cut,) = task.features(params, ["dog " * 62])
    first = next(task.features(params, texts[1:]))
    np.testing.assert_allclose(first[1], cut[1], rtol=1e-4, atol=1e-4)


@pytest.mark.full
def test_one_batch_can_be_overfitted(tmp_path):
    config = build(tmp_path, model__dropout=0.0, model__attention_dropout=0.0, train__num_steps=120)
    task = make_task(config)
    program = Program.of(config, task, jax.devices()[:1])
    state = states.init(task.config, program)
    batch = next(trainer.stream(task.rows().train.batch, 8, 1, program.batch_sharding, range(1)))
    for _ in range(120):
        state = state.replace(metrics=states.zeros(program.state.metrics))
        state = program.train_step(state, batch)
    for name in ("loss", "nsp_loss"):
        total, count = state.metrics[name]
        assert float(total) / float(count) < 0.2, name


@pytest.mark.parametrize(
    "overrides, message",
    [
        (dict(task__phases=((0.5, 16, 3),)), "shares of the updates must add up"),
        (dict(task__rare_words=-0.7), "config.task.rare_words=-0.7: must be at least 0"),
        (dict(task__ngrams=(0, 0)), r"config.task.ngrams=\(0, 0\): must be the weights"),
        (dict(task__phases=((1.0, 128, 3),)), "config.model.max_length=64"),
        (
            dict(data__tokenizer="byte_bpe", model__vocab_size=300),
            "cls, sep, mask, such as wordpiece",
        ),
        (dict(task__phases=(1.0, 16, 3)), r"as in \(\(1.0,128,20\),\)"),
        (dict(train__first_batch=4, train__ramp_steps=8), "does not grow"),
        (dict(task__phases=((1.0, 32.5, 5),)), "32.5"),
        (dict(task__phases=((True, 32, 5),)), "config.task.phases"),
        (
            dict(task__full_sentences=True),
            "full_sentences=true: rows are pairs of texts; config.task.n",
        ),
        (dict(model__num_token_types=1), "config.model.num_token_types=1: pairs of texts need 2"),
    ],
)
def test_wrong_values_are_refused(tmp_path, overrides, message):
    with pytest.raises(UserError, match=message):
        _ = make_task(build(tmp_path, **overrides)).tokenizer


def test_a_model_that_fills_no_masks_is_refused(tmp_path):
    config = build(tmp_path)
    xlnet = dict(name="xlnet", vocab_size=80, d_model=16, num_layers=1, num_heads=2)
    config.model = configs.experiment(model=xlnet, task=dict(name="masked_lm")).model
    with pytest.raises(UserError, match="config.model.name='xlnet': does not fill masks"):
        make_task(config)


def test_a_masked_model_says_what_scores_will_cost(trained, capsys):
    _, _, task, params = trained
    found = list(task.log_probability(params, ["the cat sat", "a dog ran"]))
    rows = sum(len(score.tokens) for score in found)
    assert f"{rows} rows for 2 texts" in capsys.readouterr().err
    pairs = [("the cat", " sat"), ("", "a dog ran")]
    parts = list(task.log_likelihoods(params, pairs))
    assert parts[1].log_prob == pytest.approx(found[1].log_prob, abs=1e-5)
    assert parts[0].log_prob == pytest.approx(sum(found[0].log_probs[-parts[0].tokens :]), abs=1e-5)


def test_a_text_of_unknown_pieces_is_refused(trained):
    _, _, task, params = trained
    with pytest.raises(UserError, match="text 2: the tokenizer knows no piece of it"):
        list(task.log_probability(params, ["the cat", "日本"]))


def test_minimal_pairs_have_the_ngrams_of_the_training_text_beside_them(trained):
    _, _, task, _ = trained
    good, bad = "the cat sat on the mat", "mat the on sat cat the"
    pair = minimal_pairs.Pair(good, bad, "x:1", {"file": "x"})
    found = minimal_pairs.baselines(task, [pair])
    assert found["ngrams"]["accuracy"] == 1 and found["shorter"]["ties"] == 1
