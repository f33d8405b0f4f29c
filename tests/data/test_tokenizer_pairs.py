"""The tokenizers of translation: trained on sentence pairs, saved, loaded."""

import re

import pytest

from tests.data.tokenizer_texts import ENGLISH, GERMAN, TEXTS
from transformer_jax.config import UserError, experiment
from transformer_jax.data import tokenizers
from transformer_jax.data.sources import pairs
from transformer_jax.tasks.translation import Translation


@pytest.fixture
def data(tmp_path):
    """data(**keys) returns config.data with text files; a key may be train_target=[lines]."""

    def data(train_source=ENGLISH, train_target=GERMAN, **keys):
        named = {"train_source": train_source, "train_target": train_target, **keys}
        for key, lines in named.items():
            if isinstance(lines, list):
                (tmp_path / key).write_text(
                    "".join(f"{line}\n" for line in lines), encoding="utf-8"
                )
                named[key] = str(tmp_path / key)
        return experiment(
            model={"name": "encoder_decoder"},
            task={"name": "translation"},
            data={"cache": str(tmp_path / "cache"), **named},
        ).data

    return data


def train(data, source_vocab_size=None, vocab_size=80):
    return tokenizers.train_pair(
        pairs.open_pairs(data, "train"), data, source_vocab_size, vocab_size
    )


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_ordinary_text_comes_back(data, kind):
    pair = train(data(tokenizer=kind))
    assert pair.source is pair.target
    for lines in (ENGLISH, GERMAN, ["the  cat\u00a0runs", ""]):
        ids = pair.source.encode(lines)
        assert pair.source.decode(ids) == [" ".join(line.split()) for line in lines]
        assert all(pair.source.unk_id < i < pair.source.vocab_size for each in ids for i in each)
    assert pair.source.encode([""]) == [[]]
    assert "".join(pair.source.pieces(pair.source.encode(["my house"])[0])) == "▁my▁house"


def test_special_ids_are_no_text(data):
    tokenizer = train(data()).source
    (ids,) = tokenizer.encode(["the cat"])
    special = [tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id]
    assert tokenizer.decode([[*special, *ids, *special]]) == ["the cat"]
    assert tokenizer.pieces([0, 1, 2, 3]) == ["<pad>", "<unk>", "<s>", "</s>"]
    assert tokenizer.encode(["Ω"])[0][-1] == tokenizer.unk_id


def test_ids_beyond_the_vocabulary_decode_as_unknown(data):
    """A small text gives fewer pieces than config.model.vocab_size; an untrained model may choose
    any id.
    """
    tokenizer = train(data()).source
    assert tokenizer.decode([[tokenizer.vocab_size, 10**6]]) == tokenizer.decode(
        [[tokenizer.unk_id] * 2]
    )


def test_shared_and_separate_vocabularies(data):
    shared, separate = train(data()), train(data(), source_vocab_size=50, vocab_size=60)
    assert shared.source.encode(["läuft"]) == shared.target.encode(["läuft"])
    assert separate.source.vocab_size <= 50 < separate.target.vocab_size <= 60
    assert separate.source.unk_id in separate.source.encode(["läuft"])[0]  # no ä in English
    assert separate.target.decode(separate.target.encode(["läuft"])) == ["läuft"]
    assert len({*shared.fingerprint(), *separate.fingerprint()}) == 3


@pytest.mark.parametrize("sizes", [(None, 80), (50, 60)], ids=["shared", "separate"])
def test_saved_and_loaded_is_the_same(data, tmp_path, sizes):
    pair = train(data(), *sizes)
    pair.save(tmp_path / "run" / "tokenizer")
    loaded = tokenizers.Pair.load(tmp_path / "run" / "tokenizer")
    assert loaded.fingerprint() == pair.fingerprint()
    assert (loaded.source is loaded.target) == (sizes[0] is None)
    assert loaded.source.encode(ENGLISH) == pair.source.encode(ENGLISH) and loaded.target.encode(
        GERMAN
    ) == pair.target.encode(GERMAN)


@pytest.mark.parametrize("kinds", [("roberta_bpe",) * 2, ("byte_bpe", "unigram"), ("bpe", "bpe")])
def test_a_pair_has_tokenizers_of_any_kind(tmp_path, kinds):
    source, target = (tokenizers.train(TEXTS, kind, 300) for kind in kinds)
    pair = tokenizers.Pair(source, target)
    pair.save(tmp_path / "two")
    loaded = tokenizers.Pair.load(tmp_path / "two")
    assert loaded.files() == pair.files() and loaded.fingerprint() == pair.fingerprint()
    assert loaded.source is not loaded.target
    shared = tokenizers.Pair(source, source)
    shared.save(tmp_path / "shared")
    # A pair opens the folder of a single tokenizer, and a single tokenizer that of a shared one.
    source.save(tmp_path / "single")
    for folder in ("shared", "single"):
        again = tokenizers.Pair.load(tmp_path / folder)
        assert again.source is again.target and again.files() == shared.files()
        assert tokenizers.load(tmp_path / folder).fingerprint() == source.fingerprint()


@pytest.mark.parametrize("content", [None, b"", b"no model at all"])
def test_a_folder_without_a_tokenizer_is_named(tmp_path, content):
    if content is not None:
        (tmp_path / "shared.model").write_bytes(content)
    with pytest.raises(UserError, match=f"{re.escape(str(tmp_path))}: no tokenizer"):
        tokenizers.Pair.load(tmp_path)


def test_trained_once_on_the_training_side_only(data, tmp_path, monkeypatch):
    def fingerprint(cache, **keys):
        config = experiment(
            model={"name": "encoder_decoder", "vocab_size": 80},
            task={"name": "translation"},
            data={**data(**keys).to_dict(), "cache": str(tmp_path / cache)},
        )
        return Translation(config, None).tokenizer.fingerprint()

    first = fingerprint("a", valid_source=["The dog runs."], valid_target=["Der Hund läuft."])
    assert (
        fingerprint("b", valid_source=["Zebras yawn."] * 50, valid_target=["Zebras gähnen."] * 50)
        == first
    )
    assert fingerprint("c", train_source=["Zebras yawn.", *ENGLISH[1:]]) != first

    def refuse(*_):
        raise AssertionError("trained twice")

    monkeypatch.setattr(tokenizers.SentencePiece, "train", refuse)
    assert fingerprint("a") == first
    with pytest.raises(AssertionError, match="trained twice"):
        fingerprint("a", train_source=ENGLISH[::-1])
    assert sorted(p.name[:9] for p in (tmp_path / "a").iterdir() if not p.name.startswith(".")) == [
        "tokenizer"
    ]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_text_too_small_for_the_vocabulary_gives_fewer_pieces(data, kind):
    tokenizer = train(data(tokenizer=kind), vocab_size=30_000).source
    assert 40 < tokenizer.vocab_size < 400
    assert tokenizer.decode(tokenizer.encode(GERMAN)) == GERMAN


@pytest.mark.parametrize(
    "keys, size",
    [({}, 10), ({"train_source": [""] * 3, "train_target": [""] * 3}, 50)],
    ids=["fewer pieces than letters", "no words"],
)
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_what_can_not_be_trained_is_refused_and_leaves_nothing(data, tmp_path, kind, keys, size):
    with pytest.raises(UserError, match=f"can't be trained with {size} pieces"):
        train(data(tokenizer=kind, **keys), vocab_size=size)
    assert not list((tmp_path / "cache").glob("tokenizer-*"))


def test_a_fault_in_the_text_is_named_by_file_and_line(data, tmp_path):
    config = data()
    (tmp_path / "train_target").write_bytes(b"gut\nschlecht \xff\ngut\ngut\ngut\n")
    with pytest.raises(UserError, match=re.escape(f"{tmp_path / 'train_target'}:2: not UTF-8")):
        train(config)
    with pytest.raises(UserError, match="has 2 lines, .* has more"):
        train(data(train_target=GERMAN[:2]))
