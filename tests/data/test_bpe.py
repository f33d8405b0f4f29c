"""Byte-pair encoding: GPT-2's over bytes, and GPT's over characters."""

import json
import random

import pytest
import tokenizers as huggingface

from tests.data.tokenizer_texts import TEXTS, gpt1, gpt1_vocab, write
from tests.fixtures.make_huggingface_decoder import LLAMA, QWEN2, SETTINGS, trained_tokenizer
from transformer_jax.config import UserError
from transformer_jax.data import tokenizers
from transformer_jax.data.tokenizers.bpe import GPT1BPE, ByteBPE
from transformer_jax.data.tokenizers.published import Published


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


def test_byte_bpe_is_laid_out_as_gpt2s():
    tokenizer = tokenizers.train(["the the"] * 2, "byte_bpe", 300)
    # bytes in GPT-2's order, then merges
    assert tokenizer.encode(["!", "~", "the", " the"]) == [[0], [93], [257], [258]]
    assert tokenizer.eos_id == tokenizer.vocab_size - 1
    assert tokenizer.pieces([257, 258, tokenizer.eos_id]) == ["the", "▁the", "<|endoftext|>"]


def test_roberta_bpe_is_laid_out_as_bart_reads_it(tmp_path):
    tokenizer = tokenizers.train(["the the"] * 2, "roberta_bpe", 300)
    # <s> <pad> </s> <unk>, bytes in GPT-2's order, merges, <mask>
    assert tokenizer.encode(["!", "~", "the", " the"]) == [[4], [97], [261], [262]]
    assert tokenizer.mask_id == 263 == tokenizer.vocab_size - 1
    assert (tokenizer.cls_id, tokenizer.pad_id, tokenizer.sep_id, tokenizer.unk_id) == (0, 1, 2, 3)
    assert tokenizer.framed([7]) == [0, 7, 2] and tokenizer.start_id == tokenizer.eos_id == 2
    for name, content in tokenizer.hf_files().items():
        (tmp_path / name).write_bytes(content)
    assert tokenizers.read_published(tmp_path).files() == tokenizer.files()
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config == {"tokenizer_class": "RobertaTokenizer"}


@pytest.mark.parametrize(
    "names",
    [("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")],
    ids=["hugging face", "openai"],
)
def test_byte_bpe_is_read_from_gpt2s_files(tmp_path, names):
    tokenizer = tokenizers.train(TEXTS, "byte_bpe", 400)
    for name, content in zip(names, tokenizer.hf_files().values()):
        (tmp_path / name).write_bytes(content)
    loaded = tokenizers.read_published(tmp_path)
    assert type(loaded) is ByteBPE and loaded.fingerprint() == tokenizer.fingerprint()
    assert loaded.encode(TEXTS) == tokenizer.encode(TEXTS)


END = {"content": "<|end|>", "special": True}


@pytest.mark.parametrize(
    "settings",
    [
        {"tokenizer_config.json": {"eos_token": "<|end|>"}},
        {"tokenizer_config.json": {"eos_token": END}},
        {"special_tokens_map.json": {"eos_token": "<|end|>"}},
        {"tokenizer_config.json": {"eos_token": "<|end|>", "added_tokens_decoder": {"399": END}}},
    ],
    ids=["text", "token", "map", "added"],
)
@pytest.mark.parametrize("usual", [False, True], ids=["alone", "beside <|endoftext|>"])
def test_the_end_of_a_bpe_is_the_one_that_its_settings_name(settings, usual, tmp_path):
    tokenizer = tokenizers.train(TEXTS, "byte_bpe", 400)
    files = tokenizer.hf_files()
    vocab = json.loads(files["vocab.json"])
    if usual:  # it stays an ordinary piece
        vocab["<|end|>"] = 400
        text = json.dumps(settings).replace('"399"', '"400"')
        settings = json.loads(text)
    else:
        vocab["<|end|>"] = vocab.pop("<|endoftext|>")
    if "added_tokens_decoder" in settings.get("tokenizer_config.json", {}):
        vocab.pop("<|end|>")
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_bytes(files["merges.txt"])
    for name, content in settings.items():
        (tmp_path / name).write_text(json.dumps(content))
    read = tokenizers.read_published(tmp_path)
    assert type(read) is ByteBPE and read.vocab_size == 400 + usual
    assert read.eos_id == 399 + usual and read.pieces([read.eos_id]) == ["<|end|>"]
    text = "the cat <|end|>"  # which is read as ordinary text
    assert read.encode(text) == tokenizer.encode(text)
    assert read.decode([*read.encode(text), read.eos_id]) == text
    for name, content in (read.hf_files() | read.files()).items():
        (tmp_path / "written" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "written" / name).write_bytes(content)
    assert tokenizers.read_published(tmp_path / "written").fingerprint() == read.fingerprint()
    assert tokenizers.load(tmp_path / "written").eos_id == read.eos_id


def test_a_usual_end_leaves_the_tokenizer_as_it_was(tmp_path):
    """Stores and runs know a tokenizer by its content."""
    tokenizer = tokenizers.train(TEXTS, "byte_bpe", 400)
    for name, content in tokenizer.hf_files().items():
        (tmp_path / name).write_bytes(content)
    settings = {"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert tokenizers.read_published(tmp_path).fingerprint() == tokenizer.fingerprint()


def test_a_bpe_without_an_end_is_refused_with_the_remedy(tmp_path):
    files = tokenizers.train(TEXTS, "byte_bpe", 400).hf_files()
    vocab = json.loads(files["vocab.json"])
    vocab["<|end|>"] = vocab.pop("<|endoftext|>")
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_bytes(files["merges.txt"])
    for settings in ({}, {"eos_token": "<|other|>"}, {"eos_token": None}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        with pytest.raises(UserError, match='another one in tokenizer_config.json: {"eos_token"'):
            tokenizers.read_published(tmp_path)


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
    loaded = tokenizers.read_published(tmp_path)
    assert (
        loaded.encode(TEXTS) == [each.ids for each in library.encode_batch(TEXTS)]
        and loaded.eos_id == 0
    )
    library.pre_tokenizer = huggingface.pre_tokenizers.ByteLevel(add_prefix_space=True)
    library.save(str(tmp_path / "tokenizer.json"))
    loaded = tokenizers.read_published(tmp_path)
    assert type(loaded) is Published and loaded.eos_id == 0
    assert loaded.encode(TEXTS) == [each.ids for each in library.encode_batch(TEXTS)]
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "WordLevel"}}')
    with pytest.raises(UserError, match="tokenizer.json: missing field"):
        tokenizers.read_published(tmp_path)


def test_byte_bpe_has_the_special_tokens_of_its_vocabulary(tmp_path):
    """RoBERTa's vocabulary has GPT-2's merges and other special tokens."""
    trained = tokenizers.train(TEXTS, "byte_bpe", 400)
    assert trained.bos_id is None and trained.mask_id is None
    with pytest.raises(UserError, match="BERT needs .* cls, sep, .* ByteBPE tokenizer has no cls"):
        trained.required("cls", "sep", user="BERT")
    files = trained.hf_files()
    vocab = json.loads(files["vocab.json"])
    size = vocab.pop("<|endoftext|>")
    named = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    vocab |= {piece: size + number for number, piece in enumerate(named)}
    write(tmp_path, vocab__json=vocab)
    (tmp_path / "merges.txt").write_bytes(files["merges.txt"])
    tokenizer = tokenizers.read_published(tmp_path)
    ids = tokenizer.required("bos", "pad", "eos", "unk", "mask", user="RoBERTa")
    assert ids == tuple(range(size, size + 5)) and tokenizer.eos_id == size + 2
    assert tokenizer.required("cls", "sep", user="RoBERTa") == (size, size + 2)
    assert tokenizer.special.nonzero()[0].tolist() == list(ids)
    assert not set(tokenizer.encode("<s></s><mask>")) & set(ids)
    first, second = tokenizer.encode(["the", " runs"])
    masked = tokenizer.encode_masked("the [MASK] runs")
    assert masked == [*first, tokenizer.mask_id, *second]
    assert tokenizer.decode([[ids[0], *second, ids[2]]]) == [" runs"]
    assert not tokenizer.continues[second[0]] and tokenizer.continues[tokenizer.encode("s")[0]]


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


@pytest.mark.parametrize("architecture", [LLAMA, QWEN2])
def test_a_published_bpe_splits_by_its_own_rules(architecture, tmp_path):
    library = trained_tokenizer(architecture, TEXTS)
    library.save(str(tmp_path / "tokenizer.json"))
    # Qwen2's folder has these files, too. They do not say how words are split.
    (tmp_path / "vocab.json").write_text("{}")
    (tmp_path / "merges.txt").write_text("")
    loaded = tokenizers.read_published(tmp_path)
    assert type(loaded) is Published and loaded.vocab_size == library.get_vocab_size()
    texts = [*TEXTS, "2 1234 caf\u0065\u0301", "naïve 😀\n\n  a"]
    ids = loaded.encode(texts)
    assert ids == [each.ids for each in library.encode_batch(texts, add_special_tokens=False)]
    composed = [text.replace("\u0065\u0301", "\u00e9") for text in texts]
    assert loaded.decode(ids) == (composed if architecture == QWEN2 else texts)
    end = SETTINGS[architecture]["eos_token"]
    assert loaded.eos_id == library.token_to_id(end)
    assert loaded.eos_id not in loaded.encode(end) and loaded.special[loaded.eos_id]
    assert loaded.decode([[*ids[0], loaded.eos_id]]) == loaded.decode(ids[:1])
    assert "".join(loaded.pieces(loaded.encode("a dog"))).removeprefix("▁") == "a▁dog"
    loaded.save(tmp_path / "saved")
    assert tokenizers.load(tmp_path / "saved").encode(texts) == ids
    for name, content in loaded.hf_files().items():
        (tmp_path / name).write_bytes(content)
    again = tokenizers.read_published(tmp_path)
    assert again.vocab_size == loaded.vocab_size and again.eos_id == loaded.eos_id
    assert again.encode(texts) == ids
