"""Translating with a trained model: the cache changes nothing, batches change nothing, and the loss
counts what it should.
"""

import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sacrebleu

from transformer_jax.config import UserError
from transformer_jax.data.sources.pairs import GrammarPairs, TextPairs, TfdsPairs
from transformer_jax.inference import stream
from transformer_jax.layers.blocks import for_decoding
from transformer_jax.runs import record  # record
from transformer_jax.runs.open import open_run
from transformer_jax.runs.resolve import make_task
from transformer_jax.scores import bleu
from transformer_jax.training.loop import Program, run

LINES = [
    "a dog runs",
    "the cat sleeps and two women sing",
    "",
    "a man reads a book",
    "we see the house and the child eats and a dog runs",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    from tests.conftest import build_config

    folder = tmp_path_factory.mktemp("translation")
    config = build_config(
        folder,
        train__num_steps=40,
        train__eval_every=40,
        checkpoint__every=20,
        train__log_every=40,
        optimizer__learning_rate=0.02,
        decode__batch=2,
    )
    task = make_task(config)
    record_in = folder / "run"
    record_in.mkdir()
    program = Program.of(config, task, jax.devices()[:1])
    record.begin(config, task, record_in)
    run(config, task, record_in, program)
    return record_in, open_run(record_in)


def by_whole_prefixes(task, params, line):
    """Greedy decoding that runs the whole prefix again for each token."""
    source = task.tokenizer.source.encode([line])[0] + [task.tokenizer.source.eos_id]
    target, longest = [task.tokenizer.target.bos_id], len(source) + task.config.decode.max_extra
    forward = jax.jit(
        lambda tokens: task.model.apply({"params": params}, jnp.array([source]), tokens)
    )
    for position in range(longest):
        # what stands behind is not seen
        logits = forward(jnp.array([target + [0] * (longest - len(target))]))
        target.append(int(logits[0, position].argmax()))
        if target[-1] == task.tokenizer.target.eos_id:
            target.pop()
            break
    return task.tokenizer.target.decode([target[1:]])[0]


def test_cached_greedy_decoding_equals_running_the_whole_prefix_again(trained):
    _, (task, params) = trained
    task.config.decode.beam = 1
    found = [best[0].text for best in task.translate(params, LINES)]
    assert found == [by_whole_prefixes(task, params, line) if line else "" for line in LINES]
    assert any(found)


def test_a_score_is_the_sum_the_model_gives_over_the_length_penalty(trained):
    """Teacher forcing of what beam search found gives its score again."""
    workdir, _ = trained
    task, params = open_run(workdir, overrides=[("decode.beam", "4"), ("decode.alpha", "0.7")])
    for hypothesis in next(task.translate(params, LINES[1:2], n_best=3)):
        ids = task.tokenizer.target.encode([hypothesis.text])[0]
        if task.tokenizer.target.decode([ids])[0] != hypothesis.text:
            continue
        target = [*ids, task.tokenizer.target.eos_id]
        source = task.tokenizer.source.encode(LINES[1:2])[0] + [task.tokenizer.source.eos_id]
        log_p = jax.nn.log_softmax(
            task.model.apply(
                {"params": params},
                jnp.array([source]),
                jnp.array([[task.tokenizer.target.bos_id, *ids]]),
            )
        )[0]
        total = sum(float(log_p[i, t]) for i, t in enumerate(target))
        # another segmentation may score higher
        assert hypothesis.score >= total / ((5 + len(target)) / 6) ** 0.7 - 1e-3


@pytest.mark.parametrize("beam", [1, 3])
def test_a_translation_does_not_depend_on_its_batch(trained, beam):
    workdir, _ = trained
    together = open_run(workdir, overrides=[("decode.beam", str(beam)), ("decode.batch", "4")])
    alone = open_run(workdir, overrides=[("decode.beam", str(beam)), ("decode.batch", "1")])
    texts = [
        [best[0].text for best in task.translate(params, LINES)]
        for task, params in (together, alone)
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("beam", [1, 3])
def test_places_that_are_filled_anew_and_a_cache_that_grows_change_nothing(
    trained, beam, monkeypatch
):
    """Seven sentences in two places, against each by itself with room from the start. None has an
    end: each is written to its limit.
    """
    task, params = open_run(
        trained[0], overrides=[("decode.beam", str(beam)), ("decode.batch", "2")]
    )
    target, params = task.tokenizer.target, for_decoding(params, jnp.float32)
    task.tokenizer = types.SimpleNamespace(
        target=types.SimpleNamespace(bos_id=target.bos_id, eos_id=-1)
    )
    inputs = [
        [*ids, target.eos_id]
        for ids in sorted(
            target.encode([line for line in LINES if line] + LINES[:2] + LINES[3:4]),
            key=len,
            reverse=True,
        )
    ]
    assert len({-(-len(ids) // stream._SOURCE_MULTIPLE) for ids in inputs}) > 1, (
        "sources are held at more than one length"
    )
    limits = [9, 30, 14, 3, 21, 1, 6]
    monkeypatch.setattr(stream, "_EXTRA_SLOTS", 40)
    alone = [next(task.stream(1)(params, [ids], [limit]))[1] for ids, limit in zip(inputs, limits)]
    monkeypatch.setattr(stream, "_EXTRA_SLOTS", -14)
    together = dict(task.stream(1)(params, inputs, limits))
    assert len(together) == 7
    for number, (one, limit) in enumerate(zip(alone, limits)):
        assert (
            one.ids[one.ids > 0].tolist() == together[number].ids[together[number].ids > 0].tolist()
        )
        assert np.count_nonzero(one.ids) == limit
        np.testing.assert_allclose(one.scores, together[number].scores, rtol=1e-5)


def test_sources_that_are_read_side_by_side_do_not_see_each_other(trained, monkeypatch):
    """For three places two rows of 16: the third source finds no room beside the first two and is
    read with those that follow.
    """
    task, params = open_run(trained[0], overrides=[("decode.beam", "2"), ("decode.batch", "3")])
    task.tokenizer = types.SimpleNamespace(
        target=types.SimpleNamespace(bos_id=task.tokenizer.target.bos_id, eos_id=-1)
    )
    inputs, params = (
        [list(range(4, 4 + length)) for length in (9, 9, 9, 6, 6)],
        for_decoding(params, jnp.float32),
    )
    alone = [next(task.stream(1)(params, [ids], [6]))[1] for ids in inputs]
    monkeypatch.setattr(stream, "_ROW_LENGTH", 16)
    begin, read = stream.Stream.begin, []
    monkeypatch.setattr(
        stream.Stream,
        "begin",
        lambda self, params, source, where, limits: (
            read.append(where[:, 0]),
            begin(self, params, source, where, limits),
        )[1],
    )
    # two hypotheses: not what has been compiled for other rows
    for number, beams in task.stream(2)(params, inputs, [6] * 5):
        np.testing.assert_array_equal(beams.ids[0], alone[number].ids[0])
        np.testing.assert_allclose(beams.scores[0], alone[number].scores[0], rtol=1e-5)
    # 32: nowhere
    assert [starts.tolist() for starts in read if isinstance(starts, np.ndarray)] == [
        [0, 16, 32],
        [0, 9, 16],
    ]


@pytest.mark.parametrize("lengths", [(20, 20, 20, 5), (5, 5, 5, 40)])
def test_what_was_read_with_a_longer_input_may_be_alone(trained, lengths):
    """The third is done with the second at once; the fourth, read with the third and padded as the
    longer one is, has the places to itself.
    """
    task, params = open_run(trained[0], overrides=[("decode.beam", "2"), ("decode.batch", "2")])
    task.tokenizer = types.SimpleNamespace(
        target=types.SimpleNamespace(bos_id=task.tokenizer.target.bos_id, eos_id=-1)
    )
    inputs, limits = [list(range(4, 4 + length)) for length in lengths], [3, 6, 4, 5]
    found = dict(task.stream(1)(for_decoding(params, jnp.float32), inputs, limits))
    assert [np.count_nonzero(found[number].ids) for number in range(4)] == limits


def test_a_cache_that_one_long_output_has_widened_shrinks_again(trained, monkeypatch):
    task, params = open_run(trained[0], overrides=[("decode.beam", "2"), ("decode.batch", "1")])
    task.tokenizer = types.SimpleNamespace(
        target=types.SimpleNamespace(bos_id=task.tokenizer.target.bos_id, eos_id=-1)
    )
    resize, slots = stream.Stream.resize, []
    monkeypatch.setattr(
        stream.Stream,
        "resize",
        lambda self, state, length, count: (
            slots.append(count),
            resize(self, state, length, count),
        )[1],
    )
    assert (
        len(list(task.stream(1)(for_decoding(params, jnp.float32), [[4, 5, 6]] * 2, [30, 5]))) == 2
    )
    assert slots == [2 * (stream._SOURCE_MULTIPLE + stream._EXTRA_SLOTS), stream._SOURCE_MULTIPLE + stream._EXTRA_SLOTS]


def test_what_is_not_finite_for_one_input_stays_with_it(trained, monkeypatch):
    """What token 7 is read to is NaN: that spoils the input that has it, not the one that takes its
    place.
    """
    task, params = open_run(trained[0], overrides=[("decode.beam", "2"), ("decode.batch", "1")])
    task.tokenizer = types.SimpleNamespace(
        target=types.SimpleNamespace(bos_id=task.tokenizer.target.bos_id, eos_id=-1)
    )
    begin = stream.Stream.begin

    def spoilt(self, params, source, where, limits):
        begun = begin(self, params, source, where, limits)
        return begun._replace(
            cache=jax.tree.map(
                lambda x: (
                    jnp.where((source[0] == 7).any(), jnp.nan, x) if x.dtype == jnp.float32 else x
                ),
                begun.cache,
            )
        )

    params = for_decoding(params, jnp.float32)
    alone = dict(task.stream(1)(params, [[4, 5, 6]], [5]))
    monkeypatch.setattr(stream.Stream, "begin", spoilt)
    found = dict(task.stream(1)(params, [[4, 7, 5, 6], [4, 5, 6]], [5, 5]))
    assert np.isnan(found[0].scores).all()
    np.testing.assert_array_equal(found[1].ids, alone[0].ids)
    np.testing.assert_allclose(found[1].scores, alone[0].scores, rtol=1e-5)


def test_a_file_of_any_length_is_held_in_part(trained):
    workdir, _ = trained
    task, params = open_run(workdir, overrides=[("decode.batch", "2"), ("decode.beam", "1")])
    taken = []
    lines = (taken.append(1) or LINES[0] for _ in range(10**9))
    assert next(task.translate(params, lines)) and len(taken) <= 100


@pytest.mark.parametrize(
    "sizes, key",
    [
        (dict(model__vocab_size=50), "vocab_size=50"),
        (dict(model__source_vocab_size=50), "source_vocab_size=50"),
    ],
)
def test_the_tokenizers_of_another_run_fit_the_model(trained, tiny, sizes, key):
    """Even where its parameters are not wanted."""
    config = tiny(init_from=str(trained[0]), train__pretrained=False, **sizes)
    with pytest.raises(UserError, match=f"the tokenizer has .* more than config.model.{key}"):
        make_task(config).tokenizer


LONG = "A dog runs. The cat sleeps! " * 12 + "Two women sing " * 20


def test_a_long_line_is_translated_by_its_sentences(trained, capsys):
    """As its sentences alone, a longer one cut at a space; the other lines do not change."""
    task, params = open_run(trained[0], overrides=[("decode.beam", "2"), ("decode.batch", "2")])
    lines = ["a dog runs", LONG, "", "the cat sleeps"]
    found = list(task.translate(params, lines, 2))
    said = capsys.readouterr().err
    assert said.count("warning") == 1 and "line 2 is longer than the 119 tokens" in said
    sentences = ["A dog runs.", "The cat sleeps!"] * 12
    rest = LONG.removeprefix(" ".join(sentences)).split()
    encode = task.tokenizer.source.encode
    while rest:
        fits = max(n for n in range(len(rest) + 1) if len(encode(" ".join(rest[:n]))) <= 119)
        sentences.append(" ".join(rest[:fits]))
        rest = rest[fits:]
    parts = list(task.translate(params, sentences, 2))
    for nth in range(2):
        assert found[1][nth].text == " ".join(part[nth].text for part in parts if part[nth].text)
        total = sum(part[nth].score for part in parts)
        assert found[1][nth].score == pytest.approx(total, rel=1e-4)
    alone = list(task.translate(params, lines[::3], 2))
    assert [found[0][0].text, found[3][0].text] == [best.text for best, _ in alone]
    assert found[2] == [("", 0.0)] * 2


def test_other_ways_with_a_long_line(trained, capsys):
    task, params = open_run(trained[0], overrides=[("decode.beam", "1")])
    lines, (source, target) = [LONG, "a dog runs"], (task.tokenizer.source, task.tokenizer.target)
    (truncated,), (other,) = task.translate(params, lines, long="truncate")
    assert "line 1 is longer" in capsys.readouterr().err
    cut = [*source.encode(LONG)[:119], source.eos_id]
    limits = [len(cut) + task.config.decode.max_extra]
    ((_, beams),) = task.stream(1)(for_decoding(params, jnp.float32), [cut], limits)
    ids = beams.ids[0]
    assert truncated.text == target.decode(ids[ids > 0].tolist())
    skipped = list(task.translate(params, lines, long="skip"))
    assert [best.text for (best,) in skipped] == ["", other.text]
    with pytest.raises(UserError, match="line 1: longer than the 119 tokens"):
        list(task.translate(params, lines, long="refuse"))
    with pytest.raises(UserError, match="long='drop': must be one of split, truncate, skip"):
        task.translate(params, lines, long="drop")


def test_averaging_is_the_mean_of_the_checkpoints(trained):
    workdir, _ = trained
    steps = [open_run(workdir, step)[1] for step in ("20", "40")]
    averaged = open_run(workdir, "40", overrides=[("decode.average", "2")])[1]
    jax.tree.map(
        lambda a, b, m: np.testing.assert_allclose((a + b) / 2, m, rtol=1e-6, atol=1e-7),
        *steps,
        averaged,
    )
    with pytest.raises(UserError, match="config.decode.average=3"):
        open_run(workdir, "40", overrides=[("decode.average", "3")])


def test_separate_vocabularies_and_learned_positions_train_and_translate(tmp_path):
    from tests.conftest import build_config

    config = build_config(
        tmp_path,
        model__source_vocab_size=80,
        model__positions="learned",
        model__tie_output=False,
        model__norm_position="pre",
    )
    task = make_task(config)
    (tmp_path / "run").mkdir()
    record.begin(config, task, tmp_path / "run")
    assert (
        run(config, task, tmp_path / "run", Program.of(config, task, jax.devices()[:2]))[
            "valid/loss"
        ]
        > 0
    )
    task, params = open_run(tmp_path / "run")
    assert task.tokenizer.source is not task.tokenizer.target and params["source_embed"][
        "embedding"
    ].shape == (80, 16)
    assert len(list(task.translate(params, LINES))) == len(LINES)


def test_sentences_too_long_to_translate_count_against_the_score(trained, capsys):
    _, (task, params) = trained
    pairs = [("a dog runs", "ein hund rennt"), ("dog " * 200, "hund " * 200)]
    scores = task._score(pairs, None, params)
    assert "1 sentences are longer" in capsys.readouterr().err and scores["bleu"] < 50


def test_the_loss_counts_each_target_token_once(trained):
    _, (task, params) = trained
    batch = task.rows().train.batch(0, range(8))
    sums, metrics = task.loss(
        params, {k: jnp.asarray(v) for k, v in batch.items()}, None, train=False
    )
    logits = task.model.apply(
        {"params": params},
        *(
            jnp.asarray(batch[k])
            for k in (
                "source",
                "target",
                "source_positions",
                "source_segment_ids",
                "target_positions",
                "target_segment_ids",
            )
        ),
    )
    log_p = jax.nn.log_softmax(logits)
    expected = -sum(
        float(log_p[b, t, batch["labels"][b, t]])
        for b, t in np.argwhere(batch["target_segment_ids"] > 0)
    )
    assert float(sums["loss"]) == pytest.approx(expected, rel=1e-4)
    assert (
        int(metrics["filled"][0])
        == (batch["target_segment_ids"] > 0).sum()
        == float(task.weights(batch)["loss"])
    )


def test_bleu_as_the_paper_counted_it():
    """Moses tokenisation, compounds split at hyphens, BLEU on the tokens."""
    outputs, references = (
        ["das ist ein Test-Satz .", "ganz gleich und auch lang genug ."],
        ["das ist ein Probe-Satz .", "ganz gleich und auch lang genug ."],
    )
    found = bleu.signatures(outputs, references, "de")["bleu_tokenized_compound_split"]
    tokens = [
        [re.sub("-", " ##AT##-##AT## ", line) for line in lines] for lines in (outputs, references)
    ]
    assert (
        found
        == pytest.approx(
            sacrebleu.corpus_bleu(tokens[0], [tokens[1]], tokenize="none", force=True).score
        )
        and 50 < found < 100
    )
    assert bleu._compound_split(["Ein Test-Satz, ja!"], "de") == [
        "Ein Test ##AT##-##AT## Satz , ja !"
    ]
    assert bleu.scores(references, references)["bleu"] == pytest.approx(100)


@pytest.mark.parametrize(
    "name, label",
    [
        ("test.fr", "(fr)"),
        ("test.FR.txt", "(fr)"),
        ("v1.test.de", "(de)"),
        ("test.txt", "(en, the default: the target's language is unknown)"),
        ("test.hr", "(en, the default: no rules for 'hr')"),
    ],
)
def test_the_languages_of_files_are_in_their_names(name, label):
    language = TextPairs("test.en", f"/data.de/{name}").target_language
    found = bleu.signatures(["ein Satz"], ["ein Satz"], language)
    assert f"|moses tokenizer {label}|" in found["bleu_tokenized_compound_split_signature"]


def test_the_languages_of_sets_and_of_the_grammar():
    assert TfdsPairs("set", "test", ("en", "fr")).target_language == "fr"
    assert GrammarPairs("test", 3).target_language == "de"


def test_an_evaluation_names_the_language_of_its_files(trained, tmp_path):
    workdir, _ = trained
    for name in ("test.en", "test.fr"):
        (tmp_path / name).write_text("a dog runs\n")
    files = {"data.test_source": f"{tmp_path}/test.en", "data.test_target": f"{tmp_path}/test.fr"}
    task, params = open_run(workdir, overrides={**files, "decode.beam": 1})
    found = task.evaluate(params, "test")["bleu_tokenized_compound_split_signature"]
    assert "moses tokenizer (fr)" in found
