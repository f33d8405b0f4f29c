"""WordPiece: BERT's splitting, published files, training."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tokenizers as huggingface

from tests.data.tokenizer_texts import (
    TEXTS,
    write,
)
from transformer_jax.data import tokenizers
from transformer_jax.data.tokenizers.wordpiece import WordPiece


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
    loaded, texts = tokenizers.read_published(tmp_path), ["The films!", "the é film", "dog"]
    assert loaded.required("cls", "sep", "mask", user="BERT") == (2, 3, 4) and loaded.eos_id == 3
    assert loaded.encode(texts) == [each.ids for each in library.encode_batch(texts)]
    own = WordPiece.of(pieces, cased)
    assert loaded.encode(texts) == own.encode(texts)
    assert np.array_equal(loaded.special, own.special)
    assert np.array_equal(loaded.continues, own.continues)


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
