"""The tokenizers of T5 and of Marian, read from published files."""

import json

import pytest
import tokenizers as huggingface

from tests.data.tokenizer_texts import ENGLISH, TEXTS, write
from tests.fixtures.make_huggingface import HERE
from tests.fixtures.make_huggingface_marian import CODE, MARIAN, sentence_piece
from transformer_jax.config import UserError
from transformer_jax.data import tokenizers
from transformer_jax.data.tokenizers.published import Published
from transformer_jax.data.tokenizers.unigram import ALBERT, T5, Marian, XLNet, hf_files, read

SPECIAL = "</s> <pad> <unk> <s> <extra_id_0>"


def expected(architecture):
    return json.loads((HERE / architecture / "ids.json").read_text())


def published(files, folder):
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def test_a_sentence_piece_model_has_its_own_special_ids():
    model = sentence_piece(ENGLISH, 60, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    tokenizer = tokenizers.SentencePiece(model)
    special = (tokenizer.pad_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.bos_id)
    assert special == (0, 1, 2, None) and tokenizer.start_id == 0
    assert tokenizer.decode([*tokenizer.encode("the cat"), 1]) == "the cat"
    with pytest.raises(ValueError, match="no piece for the end"):
        tokenizers.SentencePiece(sentence_piece(ENGLISH, 60, eos_id=-1))


def test_t5_equals_transformers(tmp_path):
    tokenizer = tokenizers.read_published(HERE / "T5Tokenizer")
    texts, ids, decoded = expected("T5Tokenizer").values()
    assert type(tokenizer) is Published and tokenizer.encode(texts) == ids
    assert tokenizer.decode(ids) == decoded
    assert tokenizer.num_sentinels == 100 and tokenizer.mask_id is None
    special = (tokenizer.pad_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.start_id)
    assert special == (0, 1, 2, 0) and tokenizer.framed([7]) == [7, 1]
    first = tokenizer.vocab_size - 1
    assert tokenizer.pieces([1, first, first - 99]) == ["</s>", "<extra_id_0>", "<extra_id_99>"]
    in_text = tokenizer.encode(SPECIAL)
    assert not {0, 1} & {*in_text} and max(in_text) < tokenizer.vocab_size - 100
    assert tokenizer.decode([[0, *ids[0], first, 1, 10**6]]) == decoded[:1]
    tokenizer.save(tmp_path / "saved")
    assert tokenizers.load(tmp_path / "saved").encode(texts) == ids
    again = tokenizers.read_published(published(tokenizer.hf_files(), tmp_path))
    assert again.fingerprint() == tokenizer.fingerprint()
    library = huggingface.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert library.encode(texts[0]).ids == tokenizer.framed(ids[0])
    assert library.encode("a <extra_id_1>").ids[-2:] == [first - 1, 1]


def test_xlnet_equals_transformers(tmp_path):
    tokenizer = tokenizers.read_published(HERE / "XLNetLMHeadModel")
    texts, ids, decoded = expected("XLNetLMHeadModel").values()
    assert type(tokenizer) is Published and tokenizer.encode(texts) == ids
    assert tokenizer.decode(ids) == decoded
    special = (tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id, tokenizer.eos_id)
    assert special == (3, 4, 6, 7) and tokenizer.special.sum() == 9
    in_text = tokenizer.encode("<sep> <cls> <mask> <eod>")
    assert not {3, 4, 6, 7} & {*in_text} and tokenizer.encode_masked("a [MASK]")[-1] == 6
    tokenizer.save(tmp_path / "saved")
    assert tokenizers.load(tmp_path / "saved").encode(texts) == ids
    again = tokenizers.read_published(published(tokenizer.hf_files(), tmp_path))
    assert again.fingerprint() == tokenizer.fingerprint()
    library = huggingface.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert library.encode(texts[0], texts[1]).ids == [*ids[0], 4, *ids[1], 4, 3]


def test_albert_equals_transformers(tmp_path):
    tokenizer = tokenizers.read_published(HERE / "AlbertTokenizer")
    texts, ids, decoded = expected("AlbertTokenizer").values()
    assert type(tokenizer) is Published and tokenizer.encode(texts) == ids
    assert tokenizer.decode(ids) == decoded
    special = (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
    assert special == (0, 2, 3, 4) and tokenizer.special.sum() == 5
    in_text = tokenizer.encode("[SEP] [CLS] <pad>")
    assert not {0, 2, 3, 4} & {*in_text} and tokenizer.encode_masked("a [MASK]")[-1] == 4
    tokenizer.save(tmp_path / "saved")
    assert tokenizers.load(tmp_path / "saved").encode(texts) == ids
    again = tokenizers.read_published(published(tokenizer.hf_files(), tmp_path))
    assert again.fingerprint() == tokenizer.fingerprint()
    library = huggingface.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert library.encode(texts[0], texts[1]).ids == [2, *ids[0], 3, *ids[1], 3]


@pytest.mark.parametrize("kind", [T5, ALBERT, XLNet])
def test_a_run_with_the_earlier_file_opens(kind, tmp_path):
    """Earlier releases of this package saved the pieces, and not a tokenizer.json."""
    name = {T5: "T5Tokenizer", ALBERT: "AlbertTokenizer", XLNet: "XLNetLMHeadModel"}[kind]
    earlier = read((HERE / name / "spiece.model").read_bytes(), {})
    earlier.save(tmp_path)
    loaded = tokenizers.load(tmp_path)
    texts, ids, decoded = expected(name).values()
    assert type(loaded) is kind and loaded.fingerprint() == earlier.fingerprint()
    assert loaded.encode(texts) == ids and loaded.decode(ids) == decoded


def test_marian_equals_transformers(tmp_path):
    pair = tokenizers.Pair.read_published(HERE / MARIAN)
    texts, ids, decoded, target_ids = expected(MARIAN).values()
    assert pair.source.encode(texts) == ids and pair.target.encode(texts) == target_ids
    assert pair.source.decode(ids) == decoded and pair.source is not pair.target
    for tokenizer in (pair.source, pair.target):
        last = tokenizer.vocab_size - 1
        special = (tokenizer.eos_id, tokenizer.unk_id, tokenizer.pad_id, tokenizer.bos_id)
        assert special == (0, 1, last, None)
        assert tokenizer.start_id == last and tokenizer.never == (last,)
        assert tokenizer.framed([7]) == [7, 0]
        assert not {0, last} & {*tokenizer.encode(SPECIAL)}
        assert tokenizer.pieces([0, last - 1, 10**6]) == ["</s>", CODE, "<unk>"]
        assert tokenizer.decode([[*target_ids[5], 0, last, 10**6]]) == tokenizer.decode(
            target_ids[5:6]
        )
    assert pair.source.encode(f"{CODE}a") == [last - 1, *pair.source.encode("a")]
    pair.save(tmp_path / "saved")
    assert tokenizers.Pair.load(tmp_path / "saved").files() == pair.files()
    again = tokenizers.Pair.read_published(published(hf_files(pair.source, pair.target), tmp_path))
    assert again.files() == pair.files()


def test_marians_may_have_two_vocabularies(tmp_path):
    pair = tokenizers.Pair.read_published(HERE / MARIAN)
    vocab = {"</s>": 0, "<unk>": 1, "<pad>": 2}
    target = Marian.of(vocab, pair.target.sentence_piece)
    files = hf_files(pair.source, target)
    assert json.loads(files["tokenizer_config.json"])["separate_vocabs"]
    again = tokenizers.Pair.read_published(published(files, tmp_path))
    assert again.source.files() == pair.source.files() and again.target.vocab_size == 3
    write(tmp_path, vocab__json={"</s>": 0, "<unk>": 1})
    with pytest.raises(UserError, match="no piece '<pad>' in vocab.json"):
        tokenizers.Pair.read_published(tmp_path)


def test_a_shared_pair_is_read_from_the_files_of_one_tokenizer(tmp_path):
    tokenizer = tokenizers.train(TEXTS, "roberta_bpe", 300)
    pair = tokenizers.Pair.read_published(published(tokenizer.hf_files(), tmp_path))
    assert pair.source is pair.target and pair.files() == tokenizer.files()
