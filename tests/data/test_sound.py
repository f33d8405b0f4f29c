"""Sound files, manifests, spoken digits and the masks of rows."""

import json

import numpy as np
import pytest
import soundfile
from scipy import signal
from scipy.io import wavfile

from tests.examples import masked_speech as tones
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.corpora.sources.spoken_digits import SpokenDigits
from transformer_jax.data import speech
from transformer_jax.data.speech import (
    ENGLISH,
    RATE,
    Spelling,
    Utterances,
    distractors,
    most_masked,
    normalized,
    spans,
)
from transformer_jax.records.sound import Sound


class _Keys(dict):
    """config.data, whose keys are attributes, too."""

    __getattr__ = dict.__getitem__


def of_files(folder, manifest="manifest.tsv", **keys):
    data = _Keys(vars(configs.Data(cache=str(folder / "cache"))))
    data["train_files"] = str(folder / manifest)
    return Sound(data, **keys)


def test_files_of_any_rate_are_resampled(tmp_path):
    for rate, channels, name in ((8_000, 1, "a.wav"), (44_100, 2, "b.flac"), (16_000, 1, "c.wav")):
        sound = np.repeat(tones.sound("AAAAA", rate)[:, None], channels, axis=1)
        soundfile.write(tmp_path / name, sound, rate)
        samples = speech.read(str(tmp_path / name), name)
        assert samples.dtype == np.int16
        assert len(samples) == pytest.approx(0.4 * RATE, abs=2)
        frequencies, power = signal.periodogram(samples, RATE)
        assert frequencies[power.argmax()] == pytest.approx(300, abs=3)
    assert normalized(samples).mean() == pytest.approx(0, abs=1e-4)
    assert normalized(samples).std() == pytest.approx(1, rel=1e-4)


WIDE = ("PCM_24", "PCM_32", "FLOAT", "DOUBLE")


@pytest.mark.parametrize(
    "subtype, form, scale",
    [
        ("PCM_U8", "WAV", 0.5),
        ("PCM_16", "WAV", 1),
        ("PCM_24", "WAV", 1e-4),
        ("PCM_32", "WAV", 1e-4),
        ("FLOAT", "WAV", 3),
        ("FLOAT", "WAVEX", 32_768),
        ("DOUBLE", "WAV", 1e-6),
        ("PCM_16", "FLAC", 1),
        ("PCM_24", "FLAC", 1e-4),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_samples_are_those_of_soundfile(subtype, form, scale, channels, tmp_path):
    """Neither clipped beyond -1 and 1 nor rounded to 16 bits, in files and in records."""
    sound = scale * np.random.default_rng(0).uniform(-1, 1, (500, channels))
    path = str(tmp_path / "x.wav")
    soundfile.write(path, sound, RATE, subtype=subtype, format=form)
    expected, _ = soundfile.read(path, dtype="float64", always_2d=True)
    expected = expected.mean(axis=1)
    samples = speech.read(path, path)
    assert samples.dtype == (np.float32 if subtype in WIDE else np.int16)
    rounding = 0 if channels == 1 or subtype in WIDE else 0.5 / 2**15
    close = dict(rtol=1e-6, atol=rounding + 1e-7 * scale)
    np.testing.assert_allclose(speech.waveform(samples), expected, **close)
    if subtype in WIDE:  # after the model's normalization, too
        deviation = np.sqrt(expected.var() + 1e-7)
        standard = (expected - expected.mean()) / deviation
        np.testing.assert_allclose(normalized(samples), standard, rtol=1e-4, atol=1e-5)


def test_floats_in_the_range_of_integers(tmp_path):
    """scipy.io.wavfile writes an array as it is; all of these are the same sound to a model."""
    ints = (np.random.default_rng(0).normal(size=4000) * 9000).clip(-32768, 32767).astype(np.int16)
    arrays = {
        "int16": ints,
        "int32": ints.astype(np.int32) << 16,
        "float": ints.astype(np.float32) / 2**15,
        "range": ints.astype(np.float32),
        "double": ints.astype(np.float64),
    }
    for name, array in arrays.items():
        wavfile.write(tmp_path / f"{name}.wav", RATE, array)
        samples = speech.read(str(tmp_path / f"{name}.wav"), name)
        scale = 1.0 if name in ("range", "double") else 2.0**15
        np.testing.assert_array_equal(speech.waveform(samples) * scale, ints)
        expected = normalized(ints)
        np.testing.assert_allclose(normalized(samples), expected, rtol=1e-5, atol=2e-6)
        np.testing.assert_array_equal(speech.prepared(samples, False), speech.waveform(samples))


def test_arrays_of_integers_have_their_full_scale(tmp_path):
    """As soundfile reads the file that scipy writes of them."""
    for dtype in (np.uint8, np.int16, np.int32):
        limits = np.iinfo(dtype)
        array = np.array([limits.min, limits.max // 2, limits.max // 2 + 1, limits.max], dtype)
        wavfile.write(tmp_path / "x.wav", RATE, array)
        expected, _ = soundfile.read(tmp_path / "x.wav", dtype="float32")
        np.testing.assert_array_equal(speech.waveform(array), expected)
        record = speech.record(speech.Utterance(array))
        stored = np.frombuffer(
            record.content, {2: np.int16, 4: np.float32}[len(record.content) // 4]
        )
        np.testing.assert_array_equal(speech.waveform(stored), expected)


def test_resampling_is_not_clipped(tmp_path):
    square = np.sign(np.sin(np.arange(4000) / 9))
    soundfile.write(tmp_path / "x.wav", square, 24_000, subtype="PCM_16")
    stored, _ = soundfile.read(tmp_path / "x.wav", dtype="float32")
    expected = signal.resample_poly(stored, 2, 3)
    samples = speech.read(str(tmp_path / "x.wav"), "")
    assert np.abs(expected).max() > 1.05
    np.testing.assert_allclose(speech.waveform(samples), expected, atol=1e-6)


def test_records_of_both_widths_and_of_earlier_versions(tmp_path):
    floats = np.array([0.1, -7.5, 3e-9], np.float32)
    soundfile.write(tmp_path / "a.wav", floats, RATE, subtype="FLOAT")
    soundfile.write(tmp_path / "b.wav", np.array([0.5, -0.25]), RATE, subtype="PCM_16")
    (tmp_path / "manifest.tsv").write_text("a.wav\té\nb.wav\tß x\n")
    records = of_files(tmp_path).records("train")
    first, second = Utterances(records).read([0, 1])
    np.testing.assert_array_equal(first.samples, floats)
    np.testing.assert_array_equal(second.samples, np.array([2**14, -(2**13)], np.int16))
    assert (first.text, second.text) == ("é", "ß x")

    class Earlier:
        """Records that have no width, because all of their samples had 16 bits."""

        names = ("characters", "samples")
        array = records.array

        def read(self, numbers):
            return list(records.read(numbers))

    [utterance] = Utterances(Earlier()).read([1])
    np.testing.assert_array_equal(utterance.samples, second.samples)


def test_records_of_an_earlier_version_are_not_read(tmp_path, monkeypatch):
    soundfile.write(tmp_path / "a.wav", np.array([0.1, 7.5]), RATE, subtype="FLOAT")
    (tmp_path / "manifest.tsv").write_text("a.wav\n")

    def clipped(*arguments):
        return speech.quantized(np.array([0.1, 1], np.float32))

    with monkeypatch.context() as patch:
        patch.setattr(speech, "read", clipped)
        patch.setattr(Sound, "version", 1)
        of_files(tmp_path).records("train")
    [utterance] = Utterances(of_files(tmp_path).records("train")).read([0])
    np.testing.assert_array_equal(utterance.samples, np.array([0.1, 7.5], np.float32))


def test_records_of_a_manifest(tmp_path):
    (tmp_path / "below").mkdir()
    tones.write_sound(tmp_path / "below", 2)
    lines = [{"file": "below/0.wav", "text": "A  b"}, {"file": "below/1.flac"}]
    (tmp_path / "manifest.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    (tmp_path / "manifest.tsv").write_text("below/0.wav\tA  b\nbelow/1.flac\n")
    for name in ("manifest.tsv", "manifest.jsonl"):
        utterances = Utterances(of_files(tmp_path, name).records("train"))
        assert len(utterances) == 2 and utterances.characters.tolist() == [3, 0]
        second, first = utterances.read([1, 0])
        assert (first.text, second.text) == ("A b", "")
        expected = speech.read(str(tmp_path / "below/0.wav"), "")
        np.testing.assert_array_equal(first.samples, expected)
    assert of_files(tmp_path).fingerprint("valid") is None


@pytest.mark.parametrize(
    "line, keys, message",
    [
        ("empty.wav", {}, ":1: .*empty.wav: the file is empty; config.source.faulty=skip"),
        ("text.wav", {}, ":1: .*text.wav: not WAV or FLAC"),
        ("cut.wav", {}, ":1: .*cut.wav: (damaged|can't be decoded)"),
        ("silent.wav", {}, ":1: .*silent.wav: no samples in it"),
        ("0.wav", dict(most_samples=100), ":1: .*0.wav: .* samples, and at most 100 are read"),
        ("nan.wav", {}, ":1: .*nan.wav: damaged"),
    ],
)
def test_faulty_files(line, keys, message, tmp_path, capsys):
    tones.write_sound(tmp_path, 1)
    whole = (tmp_path / "0.wav").read_bytes()
    (tmp_path / "empty.wav").write_bytes(b"")
    (tmp_path / "text.wav").write_bytes(b"OggS" + whole[4:])
    (tmp_path / "cut.wav").write_bytes(whole[: len(whole) // 2])
    soundfile.write(tmp_path / "silent.wav", np.zeros(0), RATE)
    soundfile.write(tmp_path / "nan.wav", np.full(100, np.nan), RATE, subtype="FLOAT")
    (tmp_path / "manifest.tsv").write_text(f"{line}\tA\n")
    with pytest.raises(UserError, match=message):
        of_files(tmp_path, **keys).records("train")
    soundfile.write(tmp_path / "short.wav", np.zeros(50), RATE)
    (tmp_path / "manifest.tsv").write_text(f"{line}\tA\nshort.wav\tE\n")
    records = of_files(tmp_path, faulty="skip", **keys).records("train")
    assert len(records) == 1 and "train: 1 files left out" in capsys.readouterr().err


def test_manifests_name_files_in_their_folder(tmp_path):
    tones.write_sound(tmp_path, 1)
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link.wav").symlink_to(tmp_path / "0.wav")
    for name in ("../0.wav", str(tmp_path / "0.wav"), "link.wav"):
        (inside / "manifest.tsv").write_text(f"{name}\tA\n")
        with pytest.raises(UserError, match=r"manifest.tsv:1: .* is outside"):
            of_files(inside).records("train")
        assert len(of_files(inside, outside=True).records("train")) == 1
    (inside / "manifest.tsv").write_text("\nmissing.wav\tA\n")
    with pytest.raises(UserError, match=r"manifest.tsv:2: missing.wav: no such file"):
        of_files(inside, faulty="skip").records("train")
    (inside / "manifest.jsonl").write_text('{"text": "A"}\n')
    with pytest.raises(UserError, match=r'manifest.jsonl:1: must be {"file"'):
        of_files(inside, "manifest.jsonl").records("train")


def test_spoken_digits():
    digits = SpokenDigits(None, minutes=0.1, unlabelled_minutes=0.05, held_out_minutes=0.05)
    records = [*digits.read("train")]
    assert records == [*digits.read("train")]
    labelled = [r for r in records if r.numbers["characters"]]
    assert sum(r.numbers["samples"] for r in labelled) >= 6 * RATE
    assert len(records) > len(labelled) and records[: len(labelled)] == labelled
    for record in labelled:
        words = record.content[2 * record.numbers["samples"] :].decode().split()
        assert 3 <= len(words) <= 7
    assert records[0] != next(digits.read("valid")) != next(digits.read("test"))
    with pytest.raises(UserError, match="source.minutes=0: must be above 0"):
        SpokenDigits(None, minutes=0)


def test_spans():
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(200):
        masked = spans(rng, 500, 0.65, 10)
        lengths = np.diff(np.flatnonzero(np.diff(np.pad(masked, 1).astype(int))))[::2]
        assert lengths.min() >= 10 and masked.sum() <= most_masked(500, 0.65, 10)
        shares.append(masked.mean())
    assert np.mean(shares) == pytest.approx(0.49, abs=0.01)  # Baevski et al. 2020, section 4.2
    assert not spans(rng, 5, 0.65, 10).any() and spans(rng, 50, 0.0, 10, least=2).any()


def test_distractors_are_other_positions():
    drawn = distractors(np.random.default_rng(0), 5, 400)
    for position, others in enumerate(drawn):
        assert set(others) == {*range(5)} - {position}
    assert not distractors(np.random.default_rng(0), 1, 3).any()


def test_spelling():
    spelling = Spelling(ENGLISH)
    numbers = spelling.encode(" it's  a ")
    assert [ENGLISH[number] for number in numbers] == [*"IT'S|A"]
    assert spelling.decode([0, *numbers, 2]) == "IT'S A" and spelling.words("a  b") == "A B"
    assert ENGLISH[spelling.encode("é")[0]] == "<unk>"
    with pytest.raises(UserError, match="lacks a character of the transcript 'b'"):
        Spelling(("<pad>", "|", "a")).encode("b")
