"""All kinds of tokenizers behind one interface."""

import random
import re
import types

import numpy as np
import pytest

from tests.data.tokenizer_texts import KINDS, TEXTS
from transformer_jax.config import UserError
from transformer_jax.data import tokenizers
from transformer_jax.data.tokenizers import training
from transformer_jax.data.tokenizers.bpe import GPT1BPE, ByteBPE
from transformer_jax.data.tokenizers.unigram import (
    T5,
    SentencePiece,
    from_sentence_piece,
    loaded,
    marian_of_sentence_piece,
)


class Documents(list):
    def fingerprint(self):
        return list(self)

    def parts(self):
        return [self[:2], self[2:]]


@pytest.mark.parametrize("kind", KINDS)
def test_documents_come_back(kind):
    tokenizer = tokenizers.train(TEXTS, kind, 300 if kind in ("byte_bpe", "roberta_bpe") else 150)
    ids = tokenizer.encode(TEXTS)
    assert tokenizer.decode(ids) == TEXTS
    assert all(tokenizer.eos_id != i < tokenizer.vocab_size for each in ids for i in each)
    assert tokenizer.decode([[*ids[0], tokenizer.eos_id]]) == TEXTS[:1]
    assert len(tokenizer.pieces(ids[0])) == len(ids[0]) and not re.search(
        r"\s", "".join(tokenizer.pieces(ids[0]))
    )
    assert (
        len(tokenizer.pieces([tokenizer.eos_id, 10**6]))
        == len(tokenizer.decode([[tokenizer.vocab_size], [10**6]]))
        == 2
    )


@pytest.mark.parametrize("kind", [*KINDS, "wordpiece", "words"])
def test_a_special_piece_in_the_text_is_text(kind):
    tokenizer = tokenizers.train([*TEXTS, "<>/|_[]"], kind, 300)
    for special in ("<|endoftext|>", "</s>", "<s>", "<unk>", "<pad>", "<end>", "[SEP]"):
        (ids,) = tokenizer.encode([special])
        assert tokenizer.eos_id not in ids and len(ids) > 1


@pytest.mark.parametrize("kind", [*KINDS, "wordpiece", "words"])
def test_a_kind_is_told_by_its_file(tmp_path, kind):
    tokenizer = tokenizers.train(TEXTS, kind, 300)
    tokenizer.save(tmp_path / "run" / "tokenizer")
    loaded = tokenizers.load(tmp_path / "run" / "tokenizer")
    assert type(loaded) is type(tokenizer) and loaded.files() == tokenizer.files()
    assert (loaded.vocab_size, loaded.eos_id, loaded.fingerprint()) == (
        tokenizer.vocab_size,
        tokenizer.eos_id,
        tokenizer.fingerprint(),
    )
    assert loaded.encode(TEXTS) == tokenizer.encode(TEXTS)
    assert (
        tokenizers.train(TEXTS, kind, 300).fingerprint()
        == tokenizer.fingerprint()
        != tokenizers.train(TEXTS[:3], kind, 300).fingerprint()
    )


def test_characters():
    tokenizer = tokenizers.train(["ba\n", "c b"], "characters", 7)
    assert tokenizer.encode(["cab\n x", ""]) == [[6, 4, 5, 2, 3, 1], []]
    assert tokenizer.decode([[6, 4, 1, 0, 7]]) == ["ca\ufffd\ufffd"]
    assert tokenizer.pieces([0, 1, 2, 3, 4]) == ["<end>", "<unk>", "↵", "▁", "a"]


def test_words():
    texts = ["The dog's dog, the CAT\n_the 'cat'", "a dog"]
    tokenizer = tokenizers.train(texts, "words", 100)
    words = ["the", "'", "cat", "dog", ",", "_", "a", "dog's"]
    assert tokenizer.pieces(list(range(6, tokenizer.vocab_size))) == words
    assert tokenizer.counts.tolist() == [0] * 6 + [3, 2, 2, 2, 1, 1, 1, 1]
    ids = tokenizer.encode("The owl\u2019s cat")
    assert ids == [6, tokenizer.unk_id, 8] and tokenizer.decode(ids) == "the <unk> cat"
    assert tokenizer.words([*ids, 0]) == (["the", "<unk>", "cat", "<end>"], [0, 1, 2, 3])
    assert tokenizer.decode([tokenizer.cls_id, 6, tokenizer.sep_id, tokenizer.pad_id]) == "the"
    assert tokenizer.encode_masked("the [MASK], cat") == [6, tokenizer.mask_id, 10, 8]
    assert tokenizer.encode_spans(["\u0130x  Dog\u0130"])[0][1] == [(0, 2), (4, 8)]
    assert tokenizer.special.nonzero()[0].tolist() == list(range(6))
    assert not tokenizer.continues.any()

    # Fewer words: cut at the size, or at the least count.
    assert tokenizers.train(texts, "words", 8).pieces([6, 7]) == words[:2]
    assert tokenizers.train(texts, "words", 100, min_count=2).vocab_size == 10
    cased = tokenizers.train(texts, "words", 100, cased=True)
    assert cased.decode(cased.encode("The CAT")) == "The CAT"


@pytest.mark.parametrize(
    "kind, texts, size, message",
    [
        *[
            (kind, ["", ""], 300, "no training text, or all of it is empty")
            for kind in [*KINDS, "wordpiece", "words"]
        ],
        ("byte_bpe", TEXTS, 256, "config.model.vocab_size=256: .* at least 257"),
        ("roberta_bpe", TEXTS, 260, "config.model.vocab_size=260: .* at least 261"),
        (
            "characters",
            ["abc"],
            4,
            "config.model.vocab_size=4: must be at least 5, for the 3 characters",
        ),
        ("words", ["a b"], 6, "config.model.vocab_size=6: must be at least 7"),
        (
            "wordpiece",
            ["abC"],
            10,
            "config.model.vocab_size=10: .* at least 11 for the 3 characters",
        ),
    ],
)
def test_documents_that_can_not_be_trained_on_are_refused(kind, texts, size, message):
    with pytest.raises(UserError, match=message):
        tokenizers.train(texts, kind, size)


def test_a_tokenizer_for_documents_is_trained_once(tmp_path, monkeypatch):
    data = types.SimpleNamespace(
        cache=str(tmp_path),
        rebuild=False,
        tokenizer="byte_bpe",
        cased=False,
        min_count=1,
        tokenizer_bytes=10**6,
    )
    first = tokenizers.train_cached(Documents(TEXTS), data, 300)
    with monkeypatch.context() as patch:
        patch.setattr(ByteBPE, "train", None)
        assert (
            tokenizers.train_cached(Documents(TEXTS), data, 300).fingerprint()
            == first.fingerprint()
        )
    assert tokenizers.train_cached(Documents(TEXTS), data, 290).vocab_size == 290
    for path in tmp_path.glob("tokenizer-*/byte_bpe.json"):
        path.write_bytes(b"")
    with pytest.raises(UserError, match="config.data.rebuild=true"):
        tokenizers.train_cached(Documents(TEXTS), data, 300)
    data.rebuild = True
    assert tokenizers.train_cached(Documents(TEXTS), data, 300).fingerprint() == first.fingerprint()


def test_a_sample_is_spread_over_the_parts(tmp_path, capsys):
    text = Documents([letter * 10 for letter in "abcdef"])  # parts of two and of four texts
    whole = training.Sample(text, 80)
    assert list(whole) == text and whole.is_whole
    # 20 bytes of each part, and 15, which ends within a text.
    for num_bytes in (40, 30):
        sample = training.Sample(text, num_bytes)
        assert list(sample) == list(sample) == [*text[:4]] and not sample.is_whole
    assert list(training.Sample(text, 20)) == [text[0], text[2]]
    pairs = Documents([("ä" * 5, "b" * 10)] * 6)
    assert list(training.Sample(pairs, 40)) == [*pairs[:2]]
    data = types.SimpleNamespace(
        cache=str(tmp_path),
        rebuild=False,
        tokenizer="wordpiece",
        cased=False,
        min_count=1,
        tokenizer_bytes=40,
    )
    cut = tokenizers.train_cached(text, data, 300)
    assert cut.fingerprint() == tokenizers.train(text[:4], "wordpiece", 300).fingerprint()
    assert "a sample of 40 bytes" in " ".join(capsys.readouterr().err.split())
    data.tokenizer = "characters"
    assert tokenizers.train_cached(text, data, 300).encode("f") == [7]
    data.tokenizer = "words"
    assert tokenizers.train_cached(text, data, 300).counts.tolist() == [0] * 6 + [1] * 4
    data.min_count = 2
    with pytest.raises(UserError, match="config.data.min_count=2: no word"):
        tokenizers.train_cached(text, data, 300)


@pytest.mark.parametrize("kind", ["unigram", "bpe", "byte_bpe", "characters", "wordpiece", "words"])
def test_spans_are_where_the_pieces_stand(kind):
    texts = ["the cat sat on the mat, twice", "caf\u00e9  and\ttea"] * 20
    tokenizer = tokenizers.train(texts, kind, 300)
    for text, (ids, spans), same in zip(
        texts[:2], tokenizer.encode_spans(texts[:2]), tokenizer.encode(texts[:2])
    ):
        assert (
            ids == same
            and len(spans) == len(ids)
            and [a for a, _ in spans] == sorted(a for a, _ in spans)
        )
        covered = set().union(*(range(a, b) for a, b in spans))
        assert all(
            index in covered for index, character in enumerate(text) if not character.isspace()
        )
        if kind != "byte_bpe":  # whose pieces may be parts of a character
            words = [text[a:b].strip().lower() for a, b in spans]
            # SentencePiece before 0.2.3 learns no piece for the tab.
            unmarked = [
                piece.replace("\u2581", "")
                .removeprefix("##")
                .removeprefix("<unk>")
                .strip("\u21b5\u21e5")
                for piece in tokenizer.pieces(ids)
            ]
            assert [word.replace("\u00e9", "e").strip() for word in words] == [
                piece.replace("\u00e9", "e") for piece in unmarked
            ]


LINES = ["the quick brown fox jumps over the lazy dog", "to be or not to be \u00bd \u2122"] * 30


@pytest.mark.parametrize(
    "text, stood_for",
    [
        ("a dog", ["", "a", " ", "d", "o", "g"]),  # first, the space that is put in front
        ("\u00bd dog", ["", "\u00bd", "\u00bd", "\u00bd", " ", "d", "o", "g"]),  # 1, a slash and 2
        ("o\u2122", ["", "o", "\u2122", "\u2122"]),  # T and M
        ("a  dog ", ["", "a", "  ", "d", "o", "g"]),
        ("\ufb01x", ["", "\ufb01", "\ufb01", "x"]),  # the ligature of f and i
        ("\U0001f600 d", ["", "\U0001f600", " ", "d"]),
        ("A\u030a", ["", "A\u030a"]),
        ("", []),
    ],
)
def test_spans_of_normalized_text_are_those_of_the_text(text, stood_for):
    tokenizer = SentencePiece.train(LINES, 60, "char")
    ((ids, spans),) = tokenizer.encode_spans([text])
    assert ids == tokenizer.encode(text)
    assert [text[start:stop] for start, stop in spans] == stood_for


CHARACTERS = [
    *"the dog\u00bd\u2122\ufb01\u682a\u337f \t\u200b\u00e9",
    "e\u0301",
    "  ",
    "\U0001f600",
]


@pytest.mark.parametrize(
    "kind, options",
    [
        ("unigram", {}),
        ("bpe", dict(byte_fallback=True)),
        ("unigram", dict(byte_fallback=True, add_dummy_prefix=False)),
        ("bpe", dict(normalization_rule_name="nfkc_cf", remove_extra_whitespaces=False)),
        ("unigram", dict(user_defined_symbols=["\u00bd", "<x>"])),
        ("unigram", dict(treat_whitespace_as_suffix=True)),
    ],
)
def test_spans_by_models_of_other_settings(kind, options):
    """They start as SentencePiece's own offsets do, and none stands for half a character."""
    draw = random.Random(0)
    tokenizer = SentencePiece.train(
        LINES, 330 if "byte_fallback" in options else 60, kind, **options
    )
    own = loaded(tokenizer.model)
    texts = ["".join(draw.choices(CHARACTERS, k=draw.randint(0, 12))) for _ in range(200)]
    for text, (ids, spans) in zip(texts, tokenizer.encode_spans(texts)):
        offsets = own.encode(text, return_type="offset_mapping")
        assert ids == offsets["ids"] and len(spans) == len(ids)
        for piece, (start, stop), (own_start, own_stop) in zip(
            offsets["pieces"], spans, offsets["offsets"]
        ):
            assert start == own_start and own_stop <= stop <= len(text)
            assert start < stop or piece == "\u2581"


def test_spans_equal_those_of_the_library_with_the_same_model():
    draw = random.Random(1)
    tokenizer = SentencePiece.train(LINES, 60, "unigram")
    pieces, characters = from_sentence_piece(tokenizer.model)
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    library = T5.of([*special, *pieces[4:], ("<extra_id_0>", 0.0)], characters)
    shared = [*"the dog\u00bd\u2122\ufb01\u337f"]
    texts = [" ".join("".join(draw.choices(shared, k=3)) for _ in range(3)) for _ in range(200)]
    compared = 0
    for text, (ids, spans), (same_ids, same) in zip(
        texts, tokenizer.encode_spans(texts), library.encode_spans(texts)
    ):
        if tokenizer.pieces(ids) != library.pieces(same_ids):
            continue  # another segmentation of equal probability
        compared += 1
        # The library leaves the spaces between words out.
        found, expected = ([text[a:b].strip() for a, b in each] for each in (spans, same))
        for piece, one, other in zip(tokenizer.pieces(ids), found, expected):
            assert one == other or piece == "\u2581"
    assert compared > 100


def test_spans_of_a_marian_tokenizer():
    tokenizer, _ = marian_of_sentence_piece(SentencePiece.train(LINES, 60, "char"), 80)
    for text in (">>fra<< \u00bd dog", "\u00bd dog"):
        ((ids, spans),) = tokenizer.encode_spans([text])
        assert ids == tokenizer.encode(text) and len(ids) == len(spans)
        ends = ["\u00bd", "\u00bd", "\u00bd", " ", "d", "o", "g"]
        assert [text[start:stop] for start, stop in spans][-7:] == ends
    assert tokenizer.encode_spans([">>fra<<a"])[0][1][0] == (0, 7)
    assert tokenizer.encode_spans([]) == []


@pytest.mark.parametrize(
    "kind", ["unigram", "byte_bpe", "characters", "wordpiece", "words", "gpt1"]
)
def test_one_text_or_a_list(kind):
    texts = ["the cat sat", "a dog", ""]
    if kind == "gpt1":
        pieces = ["<unk>", *(f"{letter}{end}" for letter in "acdeghost" for end in ("", "</w>"))]
        tokenizer = GPT1BPE.of({piece: number for number, piece in enumerate(pieces)}, [])
    else:
        documents = ["the cat sat on the mat", "a dog and a cat sat"] * 9
        tokenizer = tokenizers.train(documents, kind, 300 if kind == "byte_bpe" else 60)
    ids = tokenizer.encode(texts)
    assert [tokenizer.encode(text) for text in texts] == ids and ids[2] == tokenizer.encode(
        ""
    ) == []
    assert all(type(i) is int for each in ids for i in each)
    assert [tokenizer.decode(each) for each in ids] == tokenizer.decode(ids) == texts
    assert (
        tokenizer.decode([]) == "" and tokenizer.decode([[]]) == [""] and tokenizer.encode([]) == []
    )
    assert tokenizer.decode(list(np.array(ids[0]))) == texts[0]

    takes = "encode takes a text or a list of texts"
    for wrong, named in (
        (b"the cat", "bytes"),
        (None, "NoneType"),
        (7, "int"),
        (("a", "b"), "tuple"),
        (iter("ab"), "iterator"),
    ):
        with pytest.raises(UserError, match=f"{takes}, not .*{named}"):
            tokenizer.encode(wrong)
    for wrong, named in (
        (["a", b"b"], "item 1 of this list is bytes"),
        ([["a"]], "item 0 of this list is list"),
        ([None], "NoneType"),
    ):
        with pytest.raises(UserError, match=f"{takes}; .*{named}"):
            tokenizer.encode(wrong)
    takes = "decode takes a list of ids or a list of such lists"
    for wrong, named in (
        ("a", ", not str"),
        (None, ", not NoneType"),
        (5, ", not int"),
        (np.array([5]), ", not ndarray"),
        (["a"], "; item 0 of this list is str"),
        ([5, None], "; item 1"),
        ([[5], 5], "; item 1 of this list is int"),
        ([5, [5]], "; item 1 of this list is list"),
        ([1.0], "; item 0"),
        ([True], "; item 0"),
        ([-1], "; -1 is not an id"),
        ([[5], [2**31]], "; 2147483648 is not an id"),
    ):
        with pytest.raises(UserError, match=takes + named):
            tokenizer.decode(wrong)
