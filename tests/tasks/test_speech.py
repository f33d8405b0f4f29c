"""Speech: pre-training, transcripts from it, their scores, and the program."""

import json
import pickle

import jax
import numpy as np
import pytest
import soundfile

from tests.examples import masked_speech as tones
from tests.programs import call
from tests.tasks.conftest import trained
from tests.tasks.speech import build
from transformer_jax.config import UserError
from transformer_jax.data import speech
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task

VOCABULARY = ("<pad>", "|", "A", "E", "T", "O", "<unk>")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("speech")


@pytest.fixture(scope="module")
def pretrained(folder):
    config = build(folder / "data", "masked_speech", train__num_steps=40, train__log_every=20)
    return trained(config, folder / "pretrained")


@pytest.fixture(scope="module")
def transcribing(folder):
    """A run that has learned one batch by heart."""
    return trained(build(folder / "data"), folder / "transcribing")


@pytest.mark.full
def test_pre_training_tells_masked_frames_apart(pretrained):
    scores = pretrained.scores
    assert scores["valid/accuracy"] > 1.5 / 6  # one of six by chance
    assert 1 <= scores["valid/codes_used"] <= 16


@pytest.mark.full
def test_a_batch_is_learned_by_heart(transcribing):
    scores = transcribing.scores
    assert scores["valid/wer"] < 15 and scores["valid/loss"] < 0.5


@pytest.mark.full
def test_transcripts_begin_with_pre_training(pretrained, folder):
    """At first the head learns alone, and the convolutions never do."""
    groups = (("encoder", (("begin", 1),)),)
    config = build(
        folder / "data",
        init_from=str(pretrained.workdir),
        train__num_steps=2,
        train__eval_every=2,
        checkpoint__every=1,
        task__freeze_features=True,
        task__scored_utterances=0,
        optimizer__groups=groups,
        model__dropout=0.2,
    )
    run = trained(config, folder / "fine-tuned").workdir
    before = pretrained.params
    task, first = open_run(run, 1)
    assert task.config.model.dropout == 0.2 and "quantizer" not in first
    shared = [name for name in first if name != "head"]
    for name in shared:
        jax.tree.map(np.testing.assert_array_equal, before[name], first[name])
    second = open_run(run, 2)[1]
    same = {
        name: all(jax.tree.leaves(jax.tree.map(np.array_equal, before[name], second[name])))
        for name in shared
    }
    assert same["convolution_0"] and same["convolution_norms_1"] and not same["encoder"]


def test_scores_of_a_set(transcribing):
    task, params = transcribing.task, transcribing.params
    scores = task.evaluate(params, "valid")
    assert scores["wer"] == pytest.approx(transcribing.scores["valid/wer"])
    low, high = scores["intervals"]["wer"]
    assert low <= scores["wer"] <= high and scores["records"] == 8
    with pytest.raises(UserError, match="no such data; give --config.data.test_files"):
        task.evaluate(params, "test")


def test_the_transcript_of_a_file_depends_on_that_file_alone(transcribing, tmp_path):
    task, params = transcribing.task, transcribing.params
    sounds = [speech.quantized(tones.sound(tones.text(number))) for number in range(3)]
    together = [best.text for (best,) in task.transcribe(params, sounds)]
    alone = [next(task.transcribe(params, [sound]))[0].text for sound in sounds]
    assert together == alone


def test_a_language_model_in_the_beam_search(transcribing, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(tones.text(number) for number in range(8)))
    overrides = {"decode.beam": 4, "task.lm_order": 3, "task.lm_files": str(text)}
    task, params = open_run(transcribing.workdir, overrides=overrides)
    own, params = open_run(transcribing.workdir, overrides=overrides | {"task.lm_files": None})
    sound = speech.quantized(tones.sound(tones.text(1)))
    (best, *others) = next(task.transcribe(params, [sound]))
    assert not others and set(best.text) <= set("AETO ")
    assert next(own.transcribe(params, [sound]))[0] == best


def test_the_program(transcribing, tmp_path):
    good, bad = tmp_path / "good.wav", tmp_path / "bad.wav"
    soundfile.write(good, tones.sound(tones.text(0), 22_050), 22_050)
    bad.write_bytes(b"RIFF....WAVE")
    workdir = f"--workdir={transcribing.workdir}"
    names = f"{good}\n{bad}\n{good}\n"
    done = call("transcribe", workdir, "--json", "--faulty=skip", text=names)
    assert done.returncode == 0, done.stderr
    first, skipped, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert first == last and first["audio"] == str(good) and f"skipped: {bad}" in done.stderr
    assert first["seconds"] == pytest.approx(len(tones.text(0)) * tones.SECONDS, abs=1e-3)
    assert skipped["text"] == "" and skipped["seconds"] == 0
    done = call("transcribe", workdir, f"--audio={bad}")
    assert done.returncode == 2 and f"error: {bad}: can't be decoded" in done.stderr


@pytest.mark.parametrize(
    "task, key, value, message",
    [
        ("ctc", "vocabulary", ("<pad>", "A"), r"vocabulary: must have different tokens, and '\|'"),
        ("ctc", "blank", 1, "blank=1: must be the number of a token"),
        ("ctc", "seconds", 0.01, "seconds=0.01: must give at least two frames"),
        ("ctc", "masked", 1.5, "masked=1.5: must be from 0 to 1"),
        ("ctc", "characters", 0, "characters=0: must be at least 1"),
        ("masked_speech", "span", 60, "span=60: must be below the 39 frames"),
        ("masked_speech", "temperature", 0.0, "temperature=0.0: must be above 0"),
    ],
)
def test_wrong_keys(task, key, value, message, folder):
    with pytest.raises(UserError, match=message):
        make_task(build(folder / "data", task, **{f"task__{key}": value}))


def test_a_model_of_text_is_refused(folder):
    config = build(folder / "data")
    with config.ignore_type():
        config.model = {"name": "bert"}
    with pytest.raises(UserError, match="reads tokens, and .*'ctc' gives sound"):
        make_task(config)


def test_a_transcript_without_a_path_or_without_characters(folder, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    soundfile.write(data / "a.wav", tones.sound("A")[:600], tones.RATE)
    soundfile.write(data / "b.wav", tones.sound("AT"), tones.RATE)
    (data / "manifest.tsv").write_text("a.wav\tAAAA\nb.wav\ta t\nb.wav\t\n")
    task = make_task(build(data))
    rows = task.component(task.source.records("train"))
    assert len(rows) == 2
    # Other processes may read the rows.
    without, row = pickle.loads(pickle.dumps(rows)).rows([(0, 0), (1, 0)])
    assert without["num_labels"] == 0 and not without["labels"].any()
    assert row["labels"].tolist()[:4] == [2, 1, 4, 0]
    with pytest.raises(UserError, match="no utterance has a transcript"):
        make_task(build(data, task__seconds=0.03)).rows()
