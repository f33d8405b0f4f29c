"""Translating with a tiny model: neither cache nor batch changes a translation; the loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from tests.conftest import build_config
from tests.jitted import jitted
from tests.tasks.conftest import trained
from transformer_jax.config import UserError
from transformer_jax.contracts.model import Inputs
from transformer_jax.contracts.task import Context
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task
from transformer_jax.scores import texts

LINES = [
    "a dog runs",
    "the cat sleeps and two women sing",
    "",
    "a man reads a book",
    "we see the house and the child eats and a dog runs",
]
LONG = "A dog runs. The cat sleeps! " * 12 + "Two women sing " * 20


def opened(translation, **decode):
    """Returns (task, params) with other values of config.decode."""
    overrides = {f"decode.{key}": value for key, value in decode.items()}
    return open_run(translation.workdir, overrides=overrides)


def best_texts(task, params, lines=LINES):
    return [best[0].text for best in task.translate(params, lines)]


def by_whole_prefixes(task, params, line):
    """Returns a greedy translation from a model that reads the whole prefix for each token."""
    source = task.tokenizer.source.encode([line])[0] + [task.tokenizer.source.eos_id]
    target, longest = [task.tokenizer.target.bos_id], len(source) + task.config.decode.max_extra
    forward = jax.jit(
        lambda tokens: task.model.apply({"params": params}, jnp.array([source]), tokens)
    )
    for position in range(longest):
        # The padding behind the prefix is not seen.
        logits = forward(jnp.array([target + [0] * (longest - len(target))]))
        target.append(int(logits[0, position].argmax()))
        if target[-1] == task.tokenizer.target.eos_id:
            target.pop()
            break
    return task.tokenizer.target.decode([target[1:]])[0]


@pytest.mark.full
def test_cached_greedy_decoding_equals_reading_the_whole_prefix(translation):
    task, params = opened(translation, beam=1)
    texts = best_texts(task, params)
    assert texts == [by_whole_prefixes(task, params, line) if line else "" for line in LINES]
    assert any(texts)


@pytest.mark.full
def test_a_score_is_the_log_probability_over_the_length_penalty(translation):
    """Teacher forcing of a translation gives its score."""
    task, params = opened(translation, beam=4, alpha=0.7)
    source, target = task.tokenizer.source, task.tokenizer.target
    source_ids = source.encode(LINES[1:2])[0] + [source.eos_id]
    apply = jitted(task.model.apply)
    for hypothesis in next(task.translate(params, LINES[1:2], n_best=3)):
        ids = target.encode([hypothesis.text])[0]
        if target.decode([ids])[0] != hypothesis.text:
            continue
        labels, inputs = [*ids, target.eos_id], [target.bos_id, *ids]
        logits = apply({"params": params}, np.array([source_ids]), np.array([inputs]))
        log_p = scipy.special.log_softmax(logits, axis=-1)[0]
        total = sum(float(log_p[i, t]) for i, t in enumerate(labels))
        # Another segmentation of the text may have a higher score.
        assert hypothesis.score >= total / ((5 + len(labels)) / 6) ** 0.7 - 1e-3


@pytest.mark.full
@pytest.mark.parametrize("beam", [1, 3])
def test_a_translation_does_not_depend_on_its_batch(translation, beam):
    texts = [best_texts(*opened(translation, beam=beam, batch=batch)) for batch in (4, 1)]
    assert texts[0] == texts[1]


@pytest.mark.full
def test_outputs_are_as_long_as_they_should_and_repeat_nothing(translation):
    task, params = opened(
        translation,
        beam=3,
        max_length=9,
        min_length=4,
        no_repeat_ngram=2,
        force_end=True,
        penalty="length",
        early_stopping="first",
    )
    source, target = task.tokenizer.source, task.tokenizer.target
    lines = [line for line in LINES if line]
    inputs = [source.framed(ids) for ids in source.encode(lines)]
    prepared = task.model.for_decoding(params)
    texts = best_texts(task, params, lines)
    for number, outputs in task.stream(params, 1)(prepared, inputs, [9] * len(lines)):
        (ids,) = outputs.tokens(target.eos_id)
        assert 4 <= len(ids) + 1 == outputs.lengths[0] <= 9
        assert target.eos_id not in ids and len(set(zip(ids, ids[1:]))) == len(ids) - 1
        assert texts[number] == target.decode(ids)


@pytest.mark.parametrize(
    "decode, message",
    [
        (dict(max_length=129), "max_length=129: must be at most config.model.max_length=128"),
        (dict(max_length=9, min_length=10), "min_length=10: must be at most config.decode.max_l"),
        (dict(no_repeat_ngram=-1), "no_repeat_ngram=-1: must be at least 0"),
        (dict(early_stopping="true"), "early_stopping='true' is not one of 'exact', 'never'"),
    ],
)
def test_wrong_values_of_beam_search_are_refused(translation, decode, message):
    with pytest.raises(UserError, match=f"config.decode.{message}"):
        opened(translation, **decode)


def test_more_translations_than_beams_are_refused(translation):
    task, params = opened(translation, beam=2)
    with pytest.raises(UserError, match="config.decode.beam=2: must be at least 3"):
        task.translate(params, LINES, 3)


def test_a_bounded_number_of_lines_is_in_memory(translation):
    task, params = opened(translation, batch=2, beam=1)
    num_read = 0

    def lines():
        nonlocal num_read
        while True:
            num_read += 1
            yield LINES[0]

    assert next(task.translate(params, lines())) and num_read <= 100


def test_the_tokenizer_of_another_run_must_fit_the_model(translation, tiny):
    """Even where its parameters are not used. A source with its own vocabulary gets a new one."""
    origin = dict(init_from=str(translation.workdir), train__pretrained=False)
    with pytest.raises(UserError, match="the tokenizer has .* more than config.model.vocab_size"):
        _ = make_task(tiny(**origin, model__vocab_size=50)).tokenizer
    pair = make_task(tiny(**origin, model__source_vocab_size=50)).tokenizer
    assert pair.source.vocab_size <= 50
    assert pair.target.fingerprint() == translation.task.tokenizer.target.fingerprint()


@pytest.mark.full
def test_a_long_line_is_translated_sentence_by_sentence(translation, capsys):
    """A longer sentence is cut at a space. The other lines do not change."""
    task, params = opened(translation, beam=2, batch=2)
    lines = ["a dog runs", LONG, "", "the cat sleeps"]
    first, long, empty, last = task.translate(params, lines, 2)
    output = capsys.readouterr().err
    assert output.count("warning") == 1 and "line 2 is longer than the 119 tokens" in output
    sentences = ["A dog runs.", "The cat sleeps!"] * 12
    rest = LONG.removeprefix(" ".join(sentences)).split()
    encode = task.tokenizer.source.encode
    while rest:
        fits = max(n for n in range(len(rest) + 1) if len(encode(" ".join(rest[:n]))) <= 119)
        sentences.append(" ".join(rest[:fits]))
        rest = rest[fits:]
    parts = list(task.translate(params, sentences, 2))
    for nth in range(2):
        assert long[nth].text == " ".join(part[nth].text for part in parts if part[nth].text)
        total = sum(part[nth].score for part in parts)
        assert long[nth].score == pytest.approx(total, rel=1e-4)
    alone = list(task.translate(params, lines[::3], 2))
    assert [first[0].text, last[0].text] == [best.text for best, _ in alone]
    assert empty == [("", 0.0)] * 2


def test_a_long_line_may_be_cut_skipped_or_refused(translation, capsys):
    task, params = opened(translation, beam=1)
    lines, source, target = [LONG, "a dog runs"], task.tokenizer.source, task.tokenizer.target
    (truncated,), (short,) = task.translate(params, lines, long="truncate")
    assert "line 1 is longer" in capsys.readouterr().err
    cut = [*source.encode(LONG)[:119], source.eos_id]
    limits = [len(cut) + task.config.decode.max_extra]
    ((_, beams),) = task.stream(params, 1)(task.model.for_decoding(params), [cut], limits)
    assert [truncated.text] == target.decode(beams.tokens(target.eos_id))
    skipped = list(task.translate(params, lines, long="skip"))
    assert [best.text for (best,) in skipped] == ["", short.text]
    with pytest.raises(UserError, match="line 1: longer than the 119 tokens"):
        list(task.translate(params, lines, long="refuse"))
    with pytest.raises(UserError, match="long='drop': must be one of split, truncate, skip"):
        task.translate(params, lines, long="drop")


@pytest.mark.full
def test_averaged_parameters_are_the_mean_of_the_checkpoints(translation):
    workdir = translation.workdir
    steps = [open_run(workdir, step)[1] for step in ("20", "40")]
    averaged = open_run(workdir, "40", overrides={"decode.average": 2})[1]
    mean = jax.tree.map(lambda a, b: (a + b) / 2, *steps)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), mean, averaged
    )
    with pytest.raises(UserError, match="config.decode.average=3"):
        open_run(workdir, "40", overrides={"decode.average": 3})


@pytest.mark.full
def test_separate_vocabularies_and_learned_positions_train_and_translate(tmp_path):
    config = build_config(
        tmp_path,
        model__source_vocab_size=80,
        model__positions="learned",
        model__tie_output=False,
        model__norm_position="pre",
    )
    _, scores, task, params = trained(config, tmp_path)
    assert scores["valid/loss"] > 0
    assert task.tokenizer.source is not task.tokenizer.target
    assert params["source_embed"]["embedding"].shape == (80, 16)
    assert len(list(task.translate(params, LINES))) == len(LINES)


@pytest.mark.full
@pytest.mark.parametrize(
    "kind",
    [
        "binary",
        *(
            pytest.param(kind, marks=pytest.mark.full)
            for kind in ("none", "index", "normalized", "sinusoidal", "rotary")
        ),
    ],
)
def test_positions_that_were_not_chosen_train(kind, tmp_path):
    """Two updates with positions of each kind, concatenated where there are any."""
    width = 0 if kind in ("none", "rotary") else 4
    keys = dict(model__positions=kind, model__position_width=width, model__tie_output=False)
    config = build_config(tmp_path, train__num_steps=2, **keys)
    _, scores, _, params = trained(config, tmp_path)
    assert 0 < scores["valid/loss"] < 10
    assert params["target_embed"]["embedding"].shape[1] == 16 - width


def test_the_translation_of_a_sentence_that_is_too_long_counts_as_empty(translation, capsys):
    pairs = [("a dog runs", "ein hund rennt"), ("dog " * 200, "hund " * 200)]
    scores = texts.scores(*translation.task.translated_pairs(translation.params, pairs))
    assert "1 sentences are longer" in capsys.readouterr().err and scores["bleu"] < 50


def test_the_loss_counts_each_target_token_once(translation):
    task, params = translation.task, translation.params
    batch = task.rows().train.batch(0, range(8))
    arrays = {name: jnp.asarray(array) for name, array in batch.items()}
    sums, metrics, _ = jitted(task.loss)(params, arrays, Context())
    logits = jitted(task.model.apply)(
        {"params": params},
        *(
            Inputs(
                arrays[side],
                positions=arrays[f"{side}_positions"],
                segment_ids=arrays[f"{side}_segment_ids"],
            )
            for side in ("source", "target")
        ),
    )
    log_p = scipy.special.log_softmax(logits, axis=-1)
    filled = np.argwhere(batch["target_segment_ids"] > 0)
    expected = -sum(float(log_p[b, t, batch["labels"][b, t]]) for b, t in filled)
    assert float(sums["loss"]) == pytest.approx(expected, rel=1e-4)
    assert int(metrics["filled"][0]) == len(filled) == float(task.weights(batch)["loss"])
