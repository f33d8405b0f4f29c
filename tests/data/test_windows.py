"""Rows of language models: an epoch tiles the text, an evaluation predicts each token once."""

import types

import numpy as np
import pytest

from tests.conftest import build_gpt
from transformer_jax.config import UserError, experiment
from transformer_jax.data import texts, tokenizers
from transformer_jax.data.tokenizers import training
from transformer_jax.runs.spec import make_task


def fake(size, eos_every=7):
    """Returns a store of tokens 1, 2, ...; every `eos_every`-th is the end of a document (0)."""
    tokens = np.arange(1, size + 1, dtype=np.uint16)
    tokens[eos_every - 1 :: eos_every] = 0
    return types.SimpleNamespace(
        meta={"tokens": size, "eos_id": 0},
        read=lambda spans: [tokens[a:b] for a, b in spans],
        tokens=tokens,
    )


@pytest.mark.parametrize("size, length", [(103, 10), (40, 10), (20, 10), (19, 10), (11, 10)])
def test_an_epoch_tiles_the_text_from_an_offset_of_its_own(size, length):
    stored = fake(size)
    source, starts = texts.Windows(stored, length, False, (0, 0, 0)), set()
    for epoch in range(30):
        rows = source.rows([(number, epoch) for number in range(len(source))])
        tokens = np.concatenate([row["tokens"] for row in rows])
        start = int(
            np.flatnonzero(
                (
                    np.lib.stride_tricks.sliding_window_view(stored.tokens, len(tokens)) == tokens
                ).all(axis=1)
            )[0]
        )
        starts.add(start)
        for row in rows:
            np.testing.assert_array_equal(row["labels"][:-1], row["tokens"][1:])
            assert (
                row["weights"].all()
                and set(row) == {"tokens", "labels", "weights"}
                and row["labels"].dtype == np.int32
            )
        assert rows[-1]["labels"][-1] == stored.tokens[start + len(tokens)]
    assert starts == set(range(min(length, size - length))) or (
        len(starts) > 5 and max(starts) < length
    )
    again = texts.Windows(stored, length, False, (0, 0, 1))
    assert (
        any(
            again.rows([(0, e)])[0]["tokens"][0] != source.rows([(0, e)])[0]["tokens"][0]
            for e in range(10)
        )
        or size == 11
    )


def test_rows_of_single_documents(tmp_path, monkeypatch):
    """Each token is a label once, beside tokens of its own document alone, in any number of parts.

    The reads of a part are smaller than a document.
    """
    monkeypatch.setattr(texts, "_TOGETHER", 5)
    sizes = [3, 10, 1, 21, 10, 4]
    (tmp_path / "a.txt").write_text("\n\n".join("abcdefghijklmnopqrstuvwxyz"[:n] for n in sizes))
    files = {"train_files": f"{tmp_path}/a.txt,{tmp_path}/b.txt", "cache": str(tmp_path / "cache")}
    (tmp_path / "b.txt").write_text("xyz")
    config = experiment(
        model=dict(name="gpt"),
        task=dict(name="causal_lm", length=10, pack=False),
        data=dict(files, tokenizer="characters"),
        train=dict(batch=4, num_steps=5),
    )
    task = make_task(config)
    source = task.rows().train.phases[0].components[0]
    rows = source.rows([(number, 0) for number in range(len(source))])
    # An end token more than the document has; 10 letters need a second row for it.
    assert len(rows) == sum(-(-(size + 1) // 10) for size in [*sizes, 3])
    eos, labels = task.tokenizer.eos_id, []
    for row in rows:
        count = row["weights"].sum()
        assert (row["weights"][:count] == 1).all() and not row["weights"][count:].any()
        np.testing.assert_array_equal(row["labels"][: count - 1], row["tokens"][1:count])
        assert eos not in row["tokens"][1:count] and eos not in row["labels"][: count - 1]
        before = labels[-1] if labels else eos
        assert row["tokens"][0] == before
        labels += row["labels"][:count].tolist()
    whole = source.store.read([(0, source.store.meta["tokens"])])[0]
    assert labels == whole.tolist()
    with pytest.raises(UserError, match="config.task.pack=False: not with config.task.carry"):
        make_task(experiment(**config.to_dict() | {"model": dict(name="recurrent"), "task": dict(
            name="causal_lm", length=10, pack=False, carry=True)}))  # fmt: skip


def test_a_text_shorter_than_a_row_is_refused():
    with pytest.raises(
        UserError, match="the text has 10 tokens: a row of 10 tokens needs one more"
    ):
        texts.Windows(fake(10), 10, False, (0, 0, 0))


@pytest.mark.parametrize("size", [3, 9, 10, 11, 24, 100])
@pytest.mark.parametrize("stride", [1, 4, 10])
def test_sliding_windows_predict_every_token_once_with_context(size, stride):
    stored = fake(size)
    source = texts.SlidingWindows(stored, 10, stride, False)
    predicted = []
    for number, row in enumerate(source.rows([(n, 0) for n in range(len(source))])):
        counted = row["weights"] == 1
        predicted += row["labels"][counted].tolist()
        if number:  # all but the last `stride` positions are context
            assert np.flatnonzero(counted)[0] == 10 - stride
        else:
            assert row["tokens"][0] == 0  # the first token is predicted from the end of a document
    assert predicted == stored.tokens.tolist()


def test_masked_documents_begin_at_the_end_of_the_one_before():
    source = texts.Windows(fake(60), 20, True, (0, 0, 0))
    (row,) = source.rows([(0, 0)])
    begins = (row["tokens"] == 0) | (np.arange(20) == 0)
    np.testing.assert_array_equal(row["segment_ids"], np.cumsum(begins))
    assert row["segment_ids"].max() >= 3
    for segment in range(1, row["segment_ids"].max() + 1):
        positions = row["positions"][row["segment_ids"] == segment]
        np.testing.assert_array_equal(positions, np.arange(len(positions)))


class Text:
    def __init__(self, texts):
        self.texts, self.read = texts, 0

    def fingerprint(self):
        return {"texts": self.texts}

    def parts(self):
        return [self.texts[start : start + 8] for start in range(0, len(self.texts), 8)] or [[]]

    def __iter__(self):
        for text in self.texts:
            self.read += 1
            yield text


def data(tmp_path):
    return experiment(
        model={"name": "gpt"}, task={"name": "causal_lm"}, data=dict(cache=str(tmp_path))
    ).data


def test_a_text_is_its_documents_each_ended_and_counted(tmp_path):
    text = Text(["déjà", "vu", "x"])
    tokenizer = tokenizers.train(text, "characters", 20)
    stored = texts.tokenised(text, data(tmp_path), tokenizer, "train")
    (tokens,) = stored.read([(0, stored.meta["tokens"])])
    ended = [[*ids, 0] for ids in tokenizer.encode(text.texts)]
    assert tokens.tolist() == sum(ended, [])
    assert stored.meta == {"tokens": 10, "documents": 3, "bytes": 9, "characters": 7, "eos_id": 0}


def test_tokenising_goes_on_with_the_part_where_it_was_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "_CHARACTERS_PER_BLOCK", 5)
    text = Text([f"text {n}" for n in range(40)])
    tokenizer = tokenizers.train(text, "characters", 40)
    encoded, encode = [], type(tokenizer).encode

    class Killed(Exception):
        pass

    def failing(self, texts):
        if len(encoded) == 25 and "killed" not in encoded:
            encoded.append("killed")
            raise Killed
        encoded.extend(texts)
        return encode(self, texts)

    monkeypatch.setattr(type(tokenizer), "encode", failing)
    with pytest.raises(Killed):
        texts.tokenised(text, data(tmp_path), tokenizer, "train")
    stored = texts.tokenised(text, data(tmp_path), tokenizer, "train")
    assert encoded == [*text.texts[:25], "killed", *text.texts[24:]]  # the fourth part twice
    straight = texts.tokenised(text, data(tmp_path / "other"), tokenizer, "train")
    assert stored.meta == straight.meta
    np.testing.assert_array_equal(*(s.read([(0, s.meta["tokens"])])[0] for s in (stored, straight)))


def test_an_empty_text_is_refused(tmp_path):
    tokenizer = tokenizers.train(Text(["a"]), "characters", 20)
    with pytest.raises(UserError, match="no document"):
        texts.tokenised(Text([]), data(tmp_path), tokenizer, "valid")


def test_prepared_in_a_bucket_it_is_found_there_again(gcs, tmp_path, monkeypatch):
    config = build_gpt(tmp_path, data__cache="gs://bucket/prepared")
    rows = make_task(config).rows()
    assert any("tokenizer-" in name for name in gcs.objects) and any(
        "text-train-" in name for name in gcs.objects
    )
    monkeypatch.setattr(training, "train", None)
    monkeypatch.setattr(texts, "blocks", None)  # neither is done again
    again = make_task(config).rows()
    np.testing.assert_array_equal(
        rows.train.batch(3, [0, 5])["tokens"], again.train.batch(3, [0, 5])["tokens"]
    )
