import json
import os
import random
import re
import subprocess
import sys
import types

import numpy as np
import pytest
import tokenizers as huggingface

from transformer_jax.config import UserError, experiment
from transformer_jax.data import tokenizers
from transformer_jax.data.sources import pairs
from transformer_jax.data.tokenizers.bpe import GPT1BPE, ByteBPE
from transformer_jax.data.tokenizers.wordpiece import WordPiece
from transformer_jax.tasks.translation import Translation

ENGLISH = [
    "The dog runs.",
    "A cat sleeps in the house.",
    "We see two women.",
    "The child reads a book to the cat.",
    "How are you, my friend?",
]
GERMAN = [
    "Der Hund läuft.",
    "Eine Katze schläft im Haus.",
    "Wir sehen zwei Frauen.",
    "Das Kind liest der Katze ein Buch vor.",
    "Wie geht es dir, größer Freund?",
]


@pytest.fixture
def data(tmp_path):
    """data(**keys) -> config.data naming text files; keys like train_target=[lines]."""

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
    return tokenizers.train_pair(pairs.of_split(data, "train"), data, source_vocab_size, vocab_size)


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
    found = data()
    (tmp_path / "train_target").write_bytes(b"gut\nschlecht \xff\ngut\ngut\ngut\n")
    with pytest.raises(UserError, match=re.escape(f"{tmp_path / 'train_target'}:2: not UTF-8")):
        train(found)
    with pytest.raises(UserError, match="has 2 lines, .* has more"):
        train(data(train_target=GERMAN[:2]))


# documents

KINDS = ["unigram", "bpe", "byte_bpe", "characters"]
TEXTS = [
    "def f(x):\n    return  x\n\n\n# the end\n",
    " We don't  see\nthe cat in the house. ",
    *ENGLISH,
    *GERMAN,
] * 3
NO_TOKENIZER = "no tokenizer that can be read here"
GPT1_MERGES = ["l o", "lo w</w>", "e r</w>", "lo w", "low er</w>"]


class Documents(list):
    def fingerprint(self):
        return list(self)


def gpt1_vocab():
    letters = sorted({*"lowern!'i"})
    made = [merge.replace(" ", "") for merge in GPT1_MERGES]
    return {
        piece: i
        for i, piece in enumerate(
            ["<unk>", *letters, *(f"{letter}</w>" for letter in letters), *made, "\n</w>"]
        )
    }


def write(folder, **files):
    """Files by name, the dot written as two underscores: text, or JSON."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name.replace("__", ".")).write_bytes(text.encode())
    return folder


def gpt1(folder, merges=GPT1_MERGES):
    return write(
        folder, vocab__json=gpt1_vocab(), merges__txt="\n".join(["#version: 0.2", *merges, ""])
    )


def test_byte_bpe_gives_back_any_text():
    draw = random.Random(0)

    def character():
        points = [draw.randrange(128), draw.randrange(0x3000), draw.randrange(0xE000, 0x110000)]
        return chr(draw.choice(points))

    texts = ["".join(character() for _ in range(draw.randrange(40))) for _ in range(500)]
    texts += [
        "",
        "\0",
        " ",
        "  a  ",
        "\r\n",
        "a\r\n\tb\x1b",
        "😀👩‍👩‍👧",
        "\ufeffa\u2028b",
        "<|endoftext|>",
        "naïve don't",
    ]
    tokenizer = tokenizers.train(TEXTS, "byte_bpe", 400)
    assert tokenizer.decode(tokenizer.encode(texts)) == texts
    assert tokenizer.encode([""]) == [[]]


@pytest.mark.parametrize("kind", KINDS)
def test_documents_come_back(kind):
    tokenizer = tokenizers.train(TEXTS, kind, 150 if kind != "byte_bpe" else 300)
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


@pytest.mark.parametrize("kind", [*KINDS, "wordpiece"])
def test_a_special_piece_in_the_text_is_text(kind):
    tokenizer = tokenizers.train([*TEXTS, "<>/|_[]"], kind, 300)
    for special in ("<|endoftext|>", "</s>", "<s>", "<unk>", "<pad>", "<end>", "[SEP]"):
        (ids,) = tokenizer.encode([special])
        assert tokenizer.eos_id not in ids and len(ids) > 1


@pytest.mark.parametrize("kind", [*KINDS, "wordpiece"])
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


def test_byte_bpe_is_laid_out_as_gpt2s():
    tokenizer = tokenizers.train(["the the"] * 2, "byte_bpe", 300)
    # bytes in GPT-2's order, then merges
    assert tokenizer.encode(["!", "~", "the", " the"]) == [[0], [93], [257], [258]]
    assert tokenizer.eos_id == tokenizer.vocab_size - 1
    assert tokenizer.pieces([257, 258, tokenizer.eos_id]) == ["the", "▁the", "<|endoftext|>"]


@pytest.mark.parametrize(
    "names",
    [("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")],
    ids=["hugging face", "openai"],
)
def test_byte_bpe_is_read_from_gpt2s_files(tmp_path, names):
    tokenizer = tokenizers.train(TEXTS, "byte_bpe", 400)
    for name, content in zip(names, tokenizer.hf_files().values()):
        (tmp_path / name).write_bytes(content)
    found = tokenizers.read_published(tmp_path)
    assert type(found) is ByteBPE and found.fingerprint() == tokenizer.fingerprint()
    assert found.encode(TEXTS) == tokenizer.encode(TEXTS)


def test_byte_bpe_is_read_from_the_librarys_file(tmp_path):
    library = huggingface.Tokenizer(huggingface.models.BPE())
    library.pre_tokenizer, library.decoder = (
        huggingface.pre_tokenizers.ByteLevel(add_prefix_space=False),
        huggingface.decoders.ByteLevel(),
    )
    alphabet = huggingface.pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(
        TEXTS,
        huggingface.trainers.BpeTrainer(
            vocab_size=400,
            initial_alphabet=alphabet,
            special_tokens=["<|endoftext|>"],
            show_progress=False,
        ),
    )
    library.save(str(tmp_path / "tokenizer.json"))
    found = tokenizers.read_published(tmp_path)
    assert (
        found.encode(TEXTS) == [each.ids for each in library.encode_batch(TEXTS)]
        and found.eos_id == 0
    )
    library.pre_tokenizer = huggingface.pre_tokenizers.ByteLevel(add_prefix_space=True)
    library.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match="tokenizer.json is neither"):
        tokenizers.read_published(tmp_path)


@pytest.mark.parametrize("cased", [False, True])
def test_wordpiece_is_read_from_the_librarys_file(cased, tmp_path):
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "the",
        "The",
        "film",
        "##s",
        "e",
        "é",
        "!",
    ]
    library = huggingface.Tokenizer(
        huggingface.models.WordPiece(dict(zip(pieces, range(99))), unk_token="[UNK]")
    )
    library.normalizer = huggingface.normalizers.BertNormalizer(
        lowercase=not cased, strip_accents=None if cased else True
    )
    library.pre_tokenizer = huggingface.pre_tokenizers.BertPreTokenizer()
    library.add_special_tokens(pieces[:5])
    library.save(str(tmp_path / "tokenizer.json"))
    found, texts = tokenizers.read_published(tmp_path), ["The films!", "the é film", "dog"]
    assert type(found) is WordPiece and found.cased == cased and found.cls_id == 2
    assert found.encode(texts) == [each.ids for each in library.encode_batch(texts)]
    library.normalizer = huggingface.normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    library.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match="accents are kept"):
        tokenizers.read_published(tmp_path)


def test_gpt1_lowers_splits_and_closes_words(tmp_path):
    tokenizer = tokenizers.read_published(gpt1(tmp_path))
    assert type(tokenizer) is GPT1BPE and tokenizer.eos_id == tokenizer.vocab_size - 1
    (ids,) = tokenizer.encode(["Low  LOWER,\nl\u00f6w!"])
    assert tokenizer.pieces(ids) == ["low</w>", "lower</w>", "<unk>", "low</w>", "!</w>"]
    assert tokenizer.decode([[ids[0], ids[1], ids[4], tokenizer.eos_id]]) == ["low lower !"]
    assert tokenizer.pieces([tokenizer.eos_id, 10**6]) == ["↵</w>", "<unk>"]
    tokenizer.save(tmp_path / "saved")
    assert tokenizers.load(tmp_path / "saved").encode(["lower!"]) == tokenizer.encode(["lower!"])


def test_gpt1_without_a_lines_end_ends_with_unknown(tmp_path):
    vocab = gpt1_vocab()
    del vocab["\n</w>"]
    write(gpt1(tmp_path), vocab__json=vocab)
    assert tokenizers.read_published(tmp_path).eos_id == 0


def test_characters():
    tokenizer = tokenizers.train(["ba\n", "c b"], "characters", 7)
    assert tokenizer.encode(["cab\n x", ""]) == [[6, 4, 5, 2, 3, 1], []]
    assert tokenizer.decode([[6, 4, 1, 0, 7]]) == ["ca\ufffd\ufffd"]
    assert tokenizer.pieces([0, 1, 2, 3, 4]) == ["<end>", "<unk>", "↵", "▁", "a"]


BERT = [
    "[PAD]",
    "[unused0]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "!",
    "[",
    "]",
    "mask",
    "un",
    "##aff",
    "##able",
    "##a",
    "cafe",
    "café",
    "Un",
    "中",
    "文",
    "i",
    "##i",
]


def bert(folder, pieces=BERT, **config):
    return write(
        folder,
        vocab__txt="".join(f"{piece}\n" for piece in pieces),
        **{"tokenizer_config__json": config} if config else {},
    )


@pytest.mark.parametrize(
    "lowers, text, pieces",
    [
        (True, "unaffable UNAFFABLE!", ["un", "##aff", "##able"] * 2 + ["!"]),
        (True, "Caf\u00e9 cafe\u0301", ["cafe", "cafe"]),
        (True, "un中文un", ["un", "中", "文", "un"]),
        (True, "u\0n\u200b\ufffda\tun\u00a0\u2028i", ["un", "##a", "un", "i"]),
        (True, "\u0130i", ["i", "##i"]),
        (True, "unable unaffablex " + "ii" * 51, ["un", "##able", "[UNK]", "[UNK]"]),
        (True, "[MASK] [unused0]", ["[", "mask", "]", "[", "[UNK]", "]"]),
        (False, "Unaffable un CAFE café", ["Un", "##aff", "##able", "un", "[UNK]", "café"]),
    ],
)
def test_wordpiece_splits_as_bert_does(tmp_path, lowers, text, pieces):
    tokenizer = tokenizers.read_published(bert(tmp_path, do_lower_case=lowers))
    assert type(tokenizer) is WordPiece and tokenizer.cased is not lowers
    assert tokenizer.encode([text]) == [[BERT.index(piece) for piece in pieces]]
    assert tokenizer.pieces(tokenizer.encode([text])[0]) == pieces


def test_wordpiece_has_berts_special_pieces(tmp_path):
    tokenizer = tokenizers.read_published(bert(tmp_path, do_lower_case=True))
    assert [
        tokenizer.pad_id,
        tokenizer.unk_id,
        tokenizer.cls_id,
        tokenizer.sep_id,
        tokenizer.mask_id,
        tokenizer.eos_id,
    ] == [0, 2, 3, 4, 5, 4]
    assert np.flatnonzero(tokenizer.special).tolist() == [0, 1, 2, 3, 4, 5]
    assert [BERT[i] for i in np.flatnonzero(tokenizer.continues)] == [
        "##aff",
        "##able",
        "##a",
        "##i",
    ]
    ids = tokenizer.encode(["unaffable mask!"])[0]
    assert tokenizer.decode([[3, *ids, 4, 0, 0], [99]]) == [
        "unaffable mask!",
        "",
    ] and tokenizer.pieces([99]) == ["[UNK]"]
    un, mask = BERT.index("un"), tokenizer.mask_id
    assert tokenizer.encode_masked("un [MASK] UN[MASK][MASK]un") == [un, mask, un, mask, mask, un]
    assert (
        tokenizer.encode_masked("") == []
        and tokenizer.encode_masked("[mask]") == tokenizer.encode(["[mask]"])[0]
    )


def test_wordpiece_is_cased_where_its_vocabulary_is(tmp_path):
    assert tokenizers.read_published(bert(tmp_path)).cased
    assert not tokenizers.read_published(
        bert(tmp_path, [piece for piece in BERT if piece != "Un"])
    ).cased


@pytest.mark.parametrize("cased", [False, True])
def test_wordpiece_is_trained(tmp_path, cased):
    tokenizer = tokenizers.train(TEXTS, "wordpiece", 120, cased)
    assert tokenizer.vocab_size == 120 and tokenizer.cased is cased
    assert [
        tokenizer.pad_id,
        tokenizer.unk_id,
        tokenizer.cls_id,
        tokenizer.sep_id,
        tokenizer.mask_id,
    ] == [0, 1, 2, 3, 4]
    assert tokenizer.decode(tokenizer.encode(["The Hund läuft."])) == (
        ["The Hund läuft."] if cased else ["the hund lauft."]
    )
    assert not any(tokenizer.special[i] for ids in tokenizer.encode(TEXTS) for i in ids)
    for name, content in tokenizer.hf_files().items():
        (tmp_path / name).write_bytes(content)
    assert tokenizers.read_published(tmp_path).fingerprint() == tokenizer.fingerprint()
    assert 120 < tokenizers.train(TEXTS, "wordpiece", 10_000, cased).vocab_size < 300


def test_wordpiece_is_trained_alike_in_every_process():
    code = f"""
from transformer_jax.data import tokenizers
print(tokenizers.train({TEXTS!r}, 'wordpiece', 200).fingerprint())
"""
    prints = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True, env=os.environ
        ).stdout
        for _ in range(3)
    }
    assert prints == {f"{tokenizers.train(TEXTS, 'wordpiece', 200).fingerprint()}\n".encode()}


def test_rare_characters_are_unknown_to_wordpiece():
    common, rare = "".join(map(chr, range(0xAC00, 0xAC00 + 1000))), "\ud7a3"
    tokenizer = tokenizers.train([common, common, rare], "wordpiece", 2005, cased=True)
    assert tokenizer.vocab_size == 2005 and tokenizer.encode([common[7], rare]) == [
        [12],
        [tokenizer.unk_id],
    ]


@pytest.mark.parametrize(
    "kind, texts, size, message",
    [
        *[
            (kind, ["", ""], 300, "no training text, or all of it is empty")
            for kind in [*KINDS, "wordpiece"]
        ],
        ("byte_bpe", TEXTS, 256, "config.model.vocab_size=256: .* at least 257"),
        (
            "characters",
            ["abc"],
            4,
            "config.model.vocab_size=4: must be at least 5, for the 3 characters",
        ),
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


@pytest.mark.parametrize(
    "files, message",
    [
        (
            {},
            "should hold one of sentencepiece.model, byte_bpe.json, gpt1_bpe.json, "
            "characters.json, wordpiece.json; it holds none",
        ),
        (
            {"byte_bpe__json": "", "characters__json": ""},
            "it holds byte_bpe.json and characters.json",
        ),
        ({"sentencepiece__model": "no model"}, ""),
        ({"byte_bpe__json": '{"pieces": ["a"'}, ""),
        ({"byte_bpe__json": {"pieces": ["a"], "merges": []}}, r"no piece '<\|endoftext\|>'"),
        ({"characters__json": {"characters": "ba"}}, "not in order"),
        ({"characters__json": {}}, ""),
        ({"wordpiece__json": {"pieces": ["a"], "cased": False}}, r"no piece '\[PAD\]'"),
        ({"wordpiece__json": {"pieces": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]}}, "cased"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_a_folder_with_no_such_tokenizer_is_named(tmp_path, files, message):
    with pytest.raises(
        UserError,
        match=rf"^{re.escape(str(tmp_path))}: {NO_TOKENIZER} [^\n]*{message}[^\n]*$",
    ):
        tokenizers.load(write(tmp_path, **files))


@pytest.mark.parametrize(
    "files, message",
    [
        ({"vocab__json": {}}, "should hold vocab.txt .BERT., vocab.json and merges.txt, "),
        ({"vocab__txt": "[PAD]\n[UNK]\n"}, r"no piece '\[CLS\]'"),
        (
            {"vocab__txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\na\n"},
            "1 pieces of the vocabulary occur twice",
        ),
        (
            {
                "vocab__txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n",
                "tokenizer_config__json": {"strip_accents": False},
            },
            "accents are kept",
        ),
        (
            {
                "vocab__txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n",
                "tokenizer_config__json": {"tokenize_chinese_chars": False},
            },
            "Chinese characters joined",
        ),
        ({"vocab__json": {"a": 0}, "merges__txt": ""}, "no piece"),
        (
            {"vocab__json": {"<unk>": 0, "a</w>": 2}, "merges__txt": ""},
            "ids of the 2 pieces are not 0 to 1",
        ),
        (
            {"vocab__json": gpt1_vocab(), "merges__txt": "l o\nlo w\n"},
            "no merge makes 3 of the pieces, 'low</w>' the first",
        ),
        (
            {"vocab__json": gpt1_vocab(), "merges__txt": "\n".join([*GPT1_MERGES, "q w"])},
            "out of vocabulary",
        ),
        ({"tokenizer__json": "{}"}, ""),
    ],
    ids=[
        "one of two files",
        "no special pieces",
        "twice",
        "accents",
        "chinese",
        "no end",
        "a gap",
        "merges cut short",
        "merges of another vocabulary",
        "no model",
    ],
)
def test_foreign_files_that_do_not_fit_are_refused(tmp_path, files, message):
    with pytest.raises(
        UserError,
        match=rf"^{re.escape(str(tmp_path))}: {NO_TOKENIZER} [^\n]*{message}[^\n]*$",
    ):
        tokenizers.read_published(write(tmp_path, **files))


def test_a_tokenizer_for_documents_is_trained_once(tmp_path, monkeypatch):
    data = types.SimpleNamespace(
        cache=str(tmp_path), rebuild=False, tokenizer="byte_bpe", cased=False
    )
    first = tokenizers.train_cached(Documents(TEXTS), data, 300)
    with monkeypatch.context() as patch:
        patch.setattr(ByteBPE, "train", None)
        assert (
            tokenizers.train_cached(Documents(TEXTS), data, 300).fingerprint()
            == first.fingerprint()
        )
    assert tokenizers.train_cached(Documents(TEXTS), data, 290).vocab_size == 290
    kept = tmp_path.glob("tokenizer-*/byte_bpe.json")
    for path in kept:
        path.write_bytes(b"")
    with pytest.raises(UserError, match="config.data.rebuild=true"):
        tokenizers.train_cached(Documents(TEXTS), data, 300)
    data.rebuild = True
    assert tokenizers.train_cached(Documents(TEXTS), data, 300).fingerprint() == first.fingerprint()


@pytest.mark.parametrize("kind", ["unigram", "bpe", "byte_bpe", "characters", "wordpiece"])
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
            place in covered for place, character in enumerate(text) if not character.isspace()
        )
        if kind != "byte_bpe":  # whose pieces may be parts of a character
            words = [text[a:b].strip().lower() for a, b in spans]
            shown = [
                piece.replace("\u2581", "").removeprefix("##").strip("\u21b5\u21e5")
                for piece in tokenizer.pieces(ids)
            ]
            assert [word.replace("\u00e9", "e").strip() for word in words] == [
                piece.replace("\u00e9", "e") for piece in shown
            ]


@pytest.mark.parametrize("kind", ["unigram", "byte_bpe", "characters", "wordpiece", "gpt1"])
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
        ([-1], "; -1 is no id"),
        ([[5], [2**31]], "; 2147483648 is no id"),
    ):
        with pytest.raises(UserError, match=takes + named):
            tokenizer.decode(wrong)
