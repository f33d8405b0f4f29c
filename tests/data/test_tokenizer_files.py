"""Folders that hold no tokenizer, or one that does not fit."""

import re

import pytest

from tests.data.tokenizer_texts import GPT1_MERGES, gpt1_vocab, write
from transformer_jax.config import UserError
from transformer_jax.data import tokenizers

NO_TOKENIZER = "no tokenizer that can be read here"


@pytest.mark.parametrize(
    "files, message",
    [
        (
            {},
            "should hold one of albert.json, byte_bpe.json, characters.json, gpt1_bpe.json, "
            "marian.json, published.json, residues.json, sentencepiece.model, t5.json, "
            "wordpiece.json, words.json, xlnet.json; it holds none",
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
        ({"words__json": {"words": ["a"], "counts": [], "cased": False}}, "lacks its count"),
        ({"words__json": {"words": ["a", "a"], "counts": [1, 1], "cased": False}}, "twice"),
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
        (
            {"vocab__json": {}},
            "should hold tokenizer.json, vocab.txt .BERT, ESM., vocab.json and merges.txt, ",
        ),
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
