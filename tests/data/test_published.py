"""Any tokenizer.json: ids, offsets and decoded texts equal those of Hugging Face's library."""

import json

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from tests.data.tokenizer_texts import TEXTS
from transformer_jax.config import UserError
from transformer_jax.data import tokenizers
from transformer_jax.data.tokenizers.published import Published

# What reports of faults were about: emoji, letters from right to left, ends of lines, NUL, zero
# width, accents that are composed and that are not, many spaces, long numbers.
DIFFICULT = [
    "😀👩‍👩‍👧 🇩🇪x",
    "مرحبا بالعالم 12٣",
    "a\r\nb\rc\n\n d\t e",
    "nul\0here",
    "zero\u200bwidth\u200d\ufeffx",
    "caf\u00e9 cafe\u0301 \u212b ﬁ ½",
    "   three  spaces   ",
    "12345 3.14 1,000,000",
    "中文字符 日本語テキスト",
    "",
    " ",
    "don't WE'LL I'm",
    "the\u00a0cat\u2028sat\u3000",
    "\U0010ffff\ue000",
    "ǅ İstanbul ß ſ",
]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = r"\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"
GPT_END = "<|endoftext|>"
BYTES = [f"<0x{value:02X}>" for value in range(256)]
ByteLevel = pre_tokenizers.ByteLevel
ALPHABET = ByteLevel.alphabet()


def bpe(special=(GPT_END,), alphabet=(), size=400, model=None, **parts):
    """Returns a byte-pair encoding trained on TEXTS."""
    tokenizer = Tokenizer(models.BPE(**(model or {})))
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    keys = ("continuing_subword_prefix", "end_of_word_suffix")
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[*special],
        initial_alphabet=[*alphabet],
        show_progress=False,
        **{key: value for key, value in (model or {}).items() if key in keys},
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def byte_bpe(*first, normalizer=None, use_regex=True, alphabet=ALPHABET, **options):
    last = ByteLevel(add_prefix_space=False, use_regex=use_regex)
    parts = dict(pre_tokenizer=pre_tokenizers.Sequence([*first, last]))
    if normalizer:
        parts["normalizer"] = normalizer
    return bpe(alphabet=alphabet, decoder=decoders.ByteLevel(), **parts, **options)


def llama3():
    tokenizer = byte_bpe(pre_tokenizers.Split(Regex(LLAMA3), "isolated"), use_regex=False)
    content = json.loads(tokenizer.to_str())
    content["model"]["ignore_merges"] = True
    return Tokenizer.from_str(json.dumps(content))


def fallback_bpe(**parts):
    """As Llama 2 and Gemma: characters without a piece become bytes."""
    model = dict(unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    special = ("<unk>", "<s>", "</s>", *BYTES)
    return without_special_bytes(bpe(special=special, size=600, model=model, **parts))


def without_special_bytes(tokenizer, **model):
    """Returns the tokenizer with bytes as ordinary pieces, and further settings of the model."""
    content = json.loads(tokenizer.to_str())
    added = content["added_tokens"]
    content["added_tokens"] = [token for token in added if token["content"] not in BYTES]
    content["model"] |= model
    return Tokenizer.from_str(json.dumps(content))


def llama2():
    return fallback_bpe(
        normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        decoder=decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        ),
    )


def gemma():
    return fallback_bpe(
        normalizer=normalizers.Replace(" ", "▁"),
        pre_tokenizer=pre_tokenizers.Split(" ", "merged_with_previous"),
        decoder=decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        ),
    )


def unigram(byte_fallback=False, normalizer=None):
    special = ["<s>", "<pad>", "</s>", "<unk>"] + (BYTES if byte_fallback else [])
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizer or normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=500, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    if byte_fallback:
        tokenizer = without_special_bytes(tokenizer, byte_fallback=True)
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return tokenizer


def wordpiece(**options):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(**options)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer


def word_level():
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(
        special_tokens=["<unk>", "</s>", "<pad>"], show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def neox():
    """With runs of spaces as added tokens that are not special, behind the vocabulary."""
    tokenizer = byte_bpe(normalizer=normalizers.NFC())
    tokenizer.add_tokens([AddedToken(" " * n, normalized=False) for n in range(8, 1, -1)])
    return tokenizer


def truncating():
    """As all-MiniLM-L6-v2's file, which cuts and pads the texts."""
    tokenizer = wordpiece()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4)
    return tokenizer


def roberta():
    special = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    tokenizer = byte_bpe(special=special)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer


KINDS = {
    "bytes": byte_bpe,
    "some bytes never occur": lambda: byte_bpe(alphabet=()),
    "digits": lambda: byte_bpe(pre_tokenizers.Digits(individual_digits=True)),
    "Llama 3": llama3,
    "Qwen": lambda: byte_bpe(
        pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
        normalizer=normalizers.NFC(),
        use_regex=False,
    ),
    "space before a text": lambda: bpe(
        alphabet=ALPHABET,
        pre_tokenizer=ByteLevel(add_prefix_space=True),
        decoder=decoders.ByteLevel(),
    ),
    "Llama 2": llama2,
    "Gemma": gemma,
    "Metaspace": lambda: bpe(
        special=("<unk>", "</s>"),
        model=dict(unk_token="<unk>"),
        pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first"),
        decoder=decoders.Metaspace(prepend_scheme="first"),
    ),
    "Unigram": unigram,
    "Unigram, bytes": lambda: unigram(byte_fallback=True),
    "Unigram, lower case": lambda: unigram(
        normalizer=normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase()])
    ),
    "WordPiece": wordpiece,
    "WordPiece, cased": lambda: wordpiece(lowercase=False),
    "WordPiece, accents and Chinese words": lambda: wordpiece(
        strip_accents=False, handle_chinese_chars=False
    ),
    "WordPiece, cut and padded": truncating,
    "words": word_level,
    "CLIP": lambda: bpe(
        model=dict(unk_token=GPT_END, end_of_word_suffix="</w>"),
        normalizer=normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]),
        pre_tokenizer=pre_tokenizers.Split(
            Regex(r"\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"), "removed", True
        ),
        decoder=decoders.BPEDecoder(suffix="</w>"),
    ),
    "continuing pieces of BPE": lambda: bpe(
        special=("[UNK]", "[SEP]"),
        model=dict(unk_token="[UNK]", continuing_subword_prefix="##"),
        pre_tokenizer=pre_tokenizers.Sequence(
            [pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation()]
        ),
        decoder=decoders.WordPiece(),
    ),
    "GPT-NeoX": neox,
    "RoBERTa": roberta,
    "no pre-tokenizer": lambda: bpe(special=("<unk>", "</s>"), model=dict(unk_token="<unk>")),
}


def read(tokenizer, folder, **configs):
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in configs.items():
        (folder / name.replace("__", ".")).write_text(json.dumps(content))
    return tokenizers.read_published(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_offsets_and_texts_are_those_of_the_library(kind, tmp_path):
    library = KINDS[kind]()
    ours = read(library, tmp_path)
    library.no_truncation()
    library.no_padding()
    texts = [*TEXTS, *DIFFICULT]
    encoded = library.encode_batch(texts, add_special_tokens=False)
    ids = [each.ids for each in encoded]
    assert ours.encode(texts) == ids and max(map(max, filter(None, ids))) < ours.vocab_size
    assert ours.encode_spans(texts) == [(each.ids, each.offsets) for each in encoded]
    assert ours.decode(ids) == library.decode_batch(ids)
    framed = [[*([ours.bos_id] if ours.bos_id is not None else []), *x, ours.eos_id] for x in ids]
    assert ours.decode(framed) == library.decode_batch(ids)
    # Saved with a run, and written for transformers.
    ours.save(tmp_path / "saved")
    assert tokenizers.load(tmp_path / "saved").encode(texts) == ids
    for name, content in ours.hf_files().items():
        (tmp_path / name).write_bytes(content)
    again = tokenizers.read_published(tmp_path)
    assert again.encode(texts) == ids and again.eos_id == ours.eos_id
    assert again.pair_separators == (2 if kind == "RoBERTa" else 1)


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_is_a_special_token(kind, tmp_path):
    ours = read(KINDS[kind](), tmp_path)
    added = json.loads((tmp_path / "tokenizer.json").read_text())["added_tokens"]
    special = {token["content"]: token["id"] for token in added if token["special"]}
    structure = {*special.values()} - {ours.unk_id}
    texts = [*special, " ".join(special), "the".join(special)]
    assert not {i for ids in ours.encode(texts) for i in ids} & structure
    assert all(ours.special[i] for i in structure)


# Without a pre-tokenizer, a piece may reach over several words.
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"no pre-tokenizer", "Llama 2", "Gemma"}))
def test_words_are_put_together(kind, tmp_path):
    ours = read(KINDS[kind](), tmp_path)
    words, indices = ours.words(ours.encode("the cat runs"))
    assert words == ["the", "cat", "runs"] and indices == sorted(indices)


def test_special_tokens_come_from_any_of_four_files(tmp_path):
    library = bpe(
        special=("<A>", "<B>", "<C>", "<D>", "<E>"),
        alphabet=ALPHABET,
        pre_tokenizer=ByteLevel(add_prefix_space=False),
        decoder=decoders.ByteLevel(),
    )
    ours = read(
        library,
        tmp_path,
        tokenizer_config__json={"eos_token": {"content": "<A>"}, "pad_token": None},
        special_tokens_map__json={"eos_token": "<B>", "mask_token": "<C>"},
        config__json={"eos_token_id": 1, "pad_token_id": 3},
        generation_config__json={"bos_token_id": 4, "eos_token_id": [2, 1]},
    )
    assert (ours.eos_id, ours.mask_id, ours.pad_id, ours.bos_id) == (0, 2, 3, 4)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "special_tokens_map.json").unlink()
    assert tokenizers.read_published(tmp_path).eos_id == 2  # the first of several
    (tmp_path / "generation_config.json").unlink()
    assert tokenizers.read_published(tmp_path).eos_id == 1


def test_a_vocabulary_without_an_end_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(UserError, match='no token ends a document; .*{"eos_token": ...}'):
        read(bpe(special=("<unk>",)), tmp_path)


def test_gaps_of_a_vocabulary_are_never_generated(tmp_path):
    library = json.loads(word_level().to_str())
    vocab = library["model"]["vocab"]
    vocab["far"] = len(vocab) + 3
    ours = read(Tokenizer.from_str(json.dumps(library)), tmp_path)
    assert ours.vocab_size == vocab["far"] + 1 and ours.encode("far") == [vocab["far"]]
    assert ours.never == tuple(range(vocab["far"] - 3, vocab["far"]))
    assert ours.decode([ours.never[0], vocab["far"], 10**6]) == "far"


def test_an_id_that_stands_for_none_is_left_out(tmp_path):
    ours = read(llama2(), tmp_path, config__json={"pad_token_id": -1, "eos_token_id": True})
    assert ours.pad_id is None and ours.pieces([ours.eos_id]) == ["</s>"]


def test_a_special_token_that_a_merge_makes(tmp_path):
    library = json.loads(byte_bpe().to_str())
    piece = "".join(library["model"]["merges"][0])
    token = library["added_tokens"][0] | {"content": piece}
    library["added_tokens"].append(token | {"id": library["model"]["vocab"][piece]})
    ours = read(Tokenizer.from_str(json.dumps(library)), tmp_path)
    assert ours.special[library["model"]["vocab"][piece]]
    assert not any(ours.special[i] for i in ours.encode(f"{piece} {piece}"))


def test_an_earlier_file_without_a_name_of_unknown_pieces(tmp_path):
    library = json.loads(word_level().to_str())
    del library["decoder"]
    content = {"library": library, "special": {"eos": "</s>"}}
    ours = Published(json.dumps(content).encode())
    assert ours.encode("zzz") == [ours.unk_id] and ours.decode([ours.unk_id]) == ""


def test_a_run_with_the_earlier_file_opens(tmp_path):
    ours = read(llama2(), tmp_path)
    content = {"library": json.loads((tmp_path / "tokenizer.json").read_text())}
    earlier = json.dumps(content | {"special": {"eos": "</s>", "unk": "<unk>"}}).encode()
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved/published_bpe.json").write_bytes(earlier)
    loaded = tokenizers.load(tmp_path / "saved")
    assert type(loaded) is Published and loaded.encode(TEXTS) == ours.encode(TEXTS)
    assert loaded.fingerprint() == Published(earlier).fingerprint()
