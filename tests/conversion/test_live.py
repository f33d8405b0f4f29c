"""Conversion of random models from and to transformers, where it and torch are installed."""

import jax
import numpy as np
import pytest

import transformer_jax
from tests.conftest import build_bert
from tests.conversion.checkpoints import CLOSE, GPT1, GPT2, gpt_config, logits, random_run
from tests.conversion.heads import (
    BART_CLASSIFIER,
    BART_SPAN,
    CHOICE,
    CLASSIFIER,
    LINES,
    SPAN,
    TAGGER,
    assert_outputs,
    head_config,
)
from tests.conversion.test_bert import assert_outputs_of_bert
from tests.conversion.test_sequences import logits as sequence_logits
from tests.fixtures import make_huggingface as make
from tests.fixtures import make_huggingface_bert as make_bert
from tests.fixtures import make_huggingface_decoder as make_decoder
from tests.fixtures import make_huggingface_heads as make_heads
from tests.fixtures import make_huggingface_sequences as make_sequences
from transformer_jax import convert
from transformer_jax.runs.open import open_run
from transformer_jax.runs.train import train


@pytest.mark.parametrize(
    "architecture, sizes, options",
    [
        (
            GPT2,
            dict(
                n_embd=24,
                n_layer=3,
                n_head=3,
                n_positions=40,
                activation_function="gelu_pytorch_tanh",
            ),
            {},
        ),
        (
            GPT2,
            dict(
                n_embd=32,
                n_layer=2,
                n_head=4,
                n_positions=48,
                n_inner=50,
                reorder_and_upcast_attn=True,
                embd_pdrop=0.2,
            ),
            dict(max_shard_size="20KB"),
        ),
        (
            GPT2,
            dict(
                n_embd=16,
                n_layer=1,
                n_head=1,
                n_positions=64,
                vocab_size=300,
                layer_norm_epsilon=1e-2,
            ),
            dict(dtype="bfloat16"),
        ),
        (GPT1, dict(n_embd=24, n_layer=3, n_head=2, n_positions=40), dict(max_shard_size="10KB")),
        (
            GPT1,
            dict(n_embd=32, n_layer=2, n_head=8, n_positions=48, layer_norm_epsilon=1e-2),
            dict(dtype="float16"),
        ),
    ],
)
def test_gpt_from_transformers(architecture, sizes, options, tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    model = make.random_model(architecture, **{"vocab_size": 270, "eos_token_id": 0, **sizes})
    model = model.to(dtype=getattr(torch, options.get("dtype", "float32")))
    sharded = "max_shard_size" in options
    shards = {"max_shard_size": options["max_shard_size"]} if sharded else {}
    model.save_pretrained(tmp_path / "hf", **shards)
    assert (tmp_path / "hf" / "model.safetensors.index.json").exists() == sharded
    make.save_tokenizer(architecture, tmp_path / "hf")
    ids = np.random.default_rng(0).integers(0, 270, (2, sizes["n_positions"]))
    convert.from_hf(tmp_path / "hf", tmp_path / "run")
    expected = make.logits(model.float(), ids)
    np.testing.assert_allclose(logits(tmp_path / "run", ids), expected, **CLOSE)


@pytest.mark.parametrize(
    "sizes",
    [
        dict(vocab_multiple=64),
        dict(d_ff=40, num_heads=4, norm_epsilon=1e-2),
        dict(norm_position="post", vocab_multiple=8),
    ],
)
def test_gpt_to_transformers(sizes, tmp_path):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    run = random_run(gpt_config(**sizes), tmp_path / "run")
    convert.to_hf(run, tmp_path / "hf")
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "hf", output_loading_info=True
    )
    assert not any(loading.values())
    ids = np.random.default_rng(0).integers(0, 267, (2, 24))
    np.testing.assert_allclose(logits(run, ids), make.logits(model.eval(), ids), **CLOSE)
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    _, _, tokenizer = transformer_jax.load(run)
    assert hf_tokenizer([make.TEXT]).input_ids == tokenizer.encode([make.TEXT])
    assert hf_tokenizer.eos_token_id == tokenizer.eos_id == model.generation_config.eos_token_id


@pytest.mark.parametrize(
    "architecture, sizes",
    [
        (make_decoder.LLAMA, dict(rope_parameters=None, tie_word_embeddings=True)),
        (make_decoder.LLAMA, dict(num_key_value_heads=None, hidden_size=24, num_hidden_layers=3)),
        (make_decoder.QWEN2, dict(tie_word_embeddings=False, num_key_value_heads=1)),
        (make_decoder.QWEN2, dict(rope_parameters=dict(rope_type="default", rope_theta=1e6))),
    ],
)
def test_decoder_from_and_to_transformers(architecture, sizes, tmp_path):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    library = make_decoder.save_tokenizer(architecture, tmp_path / "hf")
    sizes = make_decoder.sizes_of(architecture, library) | sizes
    model = make.random_model(architecture, seed=5, **sizes)
    model.save_pretrained(tmp_path / "hf", max_shard_size="20KB")
    ids = np.random.default_rng(0).integers(0, sizes["vocab_size"], (2, 60))
    expected = make.logits(model, ids)
    convert.from_hf(tmp_path / "hf", tmp_path / "run")
    np.testing.assert_allclose(logits(tmp_path / "run", ids), expected, **CLOSE)

    convert.to_hf(tmp_path / "run", tmp_path / "back")
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "back", output_loading_info=True
    )
    assert type(model).__name__ == architecture and not any(loading.values())
    np.testing.assert_allclose(make.logits(model.eval(), ids), expected, **CLOSE)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    ours = transformer_jax.load(tmp_path / "run")[2]
    for text in make_decoder.TEXTS:
        assert tokenizer(text, add_special_tokens=False).input_ids == ours.encode(text)
    assert tokenizer.eos_token_id == ours.eos_id == model.generation_config.eos_token_id


@pytest.mark.parametrize(
    "name, sizes",
    [
        (make_sequences.BART, dict(encoder_layers=1, d_model=24, forced_eos_token_id=None)),
        (make_sequences.T5, dict(num_decoder_layers=None, d_kv=3, num_heads=4)),
        (make_sequences.T5_1_1, dict(relative_attention_num_buckets=32, d_ff=40)),
        (make_sequences.T5_1_1, dict(feed_forward_proj="relu")),
    ],
)
def test_sequences_from_and_to_transformers(name, sizes, tmp_path):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    vocab_size = make_sequences.save_tokenizer(name, tmp_path / "hf")
    if "relative_attention_num_buckets" in sizes:
        sizes = dict(sizes, relative_attention_max_distance=128)
    model = make_sequences.random_sequence_model(name, 5, vocab_size=vocab_size, **sizes)
    model.save_pretrained(tmp_path / "hf", max_shard_size="20KB")
    inputs = make_sequences.inputs(vocab_size, 60)
    expected = make_sequences.computed(model, **inputs)
    convert.from_hf(tmp_path / "hf", tmp_path / "run")
    np.testing.assert_allclose(sequence_logits(tmp_path / "run", **inputs), expected, **CLOSE)

    convert.to_hf(tmp_path / "run", tmp_path / "back")
    model, loading = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path / "back", output_loading_info=True
    )
    assert type(model).__name__ == name.removesuffix("-1.1") and not any(loading.values())
    np.testing.assert_array_equal(make_sequences.computed(model.eval(), **inputs), expected)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    ours = transformer_jax.load(tmp_path / "run")[2].target
    ids = ours.framed(ours.encode(make_sequences.PROMPT))
    assert tokenizer(make_sequences.PROMPT).input_ids == ids
    options = model.generation_config
    assert options.decoder_start_token_id == ours.start_id
    assert (options.eos_token_id, options.pad_token_id) == (ours.eos_id, ours.pad_id)


@pytest.mark.parametrize("architecture", make_bert.ARCHITECTURES)
@pytest.mark.parametrize(
    "sizes",
    [
        dict(hidden_size=24, num_hidden_layers=3, num_attention_heads=3),
        dict(intermediate_size=30, type_vocab_size=3, layer_norm_eps=1e-12),
    ],
)
def test_bert_from_transformers(architecture, sizes, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    vocab_size = make_bert.save_tokenizer(tmp_path / "hf")
    sizes = {**make_bert.SIZES, **sizes, "vocab_size": vocab_size}
    model = make.random_model(architecture, seed=5, **sizes)
    model.save_pretrained(tmp_path / "hf")
    convert.from_hf(tmp_path / "hf", tmp_path / "run")
    inputs = make_bert.inputs(vocab_size, 20)
    assert_outputs_of_bert(tmp_path / "run", inputs, make_bert.computed(model, **inputs))


@pytest.mark.parametrize("next_sentence", [1.0, 0.0])
def test_bert_to_transformers(next_sentence, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = build_bert(tmp_path, task__next_sentence=next_sentence, train__num_steps=2)
    train(config, tmp_path / "run")
    convert.to_hf(tmp_path / "run", tmp_path / "hf")
    cls = transformers.BertForPreTraining if next_sentence else transformers.BertForMaskedLM
    model, loading = cls.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(loading.values())
    inputs = make_bert.inputs(60, 20)
    assert_outputs_of_bert(tmp_path / "run", inputs, make_bert.computed(model.eval(), **inputs))
    task, _ = open_run(tmp_path / "run")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    text = "The cat sat, the dog ran."
    assert tokenizer(text).input_ids[1:-1] == task.tokenizer.encode([text])[0]


@pytest.mark.parametrize("architecture", make_heads.HEADS)
@pytest.mark.parametrize("wide", [False, True])
def test_heads_from_transformers(architecture, wide, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    vocab_size = make_heads.save_tokenizer(architecture, tmp_path / "hf")
    sizes = {}
    if wide and architecture == make_heads.GPT2:
        sizes = dict(n_embd=24, n_layer=3, n_head=3)
    elif wide and make_heads.is_bart(architecture):
        sizes = dict(d_model=24, encoder_layers=3)
        sizes |= dict(encoder_attention_heads=3, decoder_attention_heads=3)
    elif wide:
        sizes = dict(hidden_size=24, num_hidden_layers=3, num_attention_heads=3)
        sizes["layer_norm_eps"] = 1e-12
        if architecture.startswith("Longformer"):
            sizes["attention_window"] = [4, 8, 4]  # one of each layer
    if wide and "id2label" in make_heads.HEADS[architecture]:
        # Labels without names.
        sizes |= dict(num_labels=4, id2label=None)
    model = make_heads.model(architecture, vocab_size, seed=5, **sizes)
    model.save_pretrained(tmp_path / "hf")
    convert.from_hf(tmp_path / "hf", tmp_path / "run")
    inputs = make_heads.inputs(architecture, vocab_size, 20)
    assert_outputs(tmp_path / "run", inputs, make_heads.computed(model, **inputs))


@pytest.mark.parametrize(
    "architecture, options, lines",
    [
        (
            CLASSIFIER,
            dict(task="classification", pair="2", label="3"),
            ["the cat sat\ton the mat", "the man reads\ta book and a rat"],
        ),
        (CLASSIFIER, dict(task="classification", regression=True), ["the cat sat", "a book"]),
        (TAGGER, dict(task="tagging", head_dropout=0.3), ["the cat sat on the mat", "a rat"]),
        (SPAN, dict(task="span"), [LINES[SPAN], "a book\tthe man reads"]),
        (
            CHOICE,
            dict(task="choice"),
            ["the cat\tsat\tsaw a rat\treads\tthe mat", "the man\treads a book\tsaw\tsat\ton"],
        ),
        (
            make_heads.GPT2,
            dict(task="classification", model="gpt", pair="2", label="3"),
            ["the cat sat\ton the mat", "the man reads\ta book and a rat"],
        ),
        (
            make_heads.GPT2,
            dict(task="classification", model="gpt", regression=True),
            ["the cat sat", "a book"],
        ),
        # Each pair has two separators and the end.
        (
            BART_CLASSIFIER,
            dict(task="classification", model="bart", pair="2", label="3"),
            ["the cat sat\ton the mat", "the man reads\ta book and a rat"],
        ),
        (
            BART_SPAN,
            dict(task="span", model="bart"),
            ["who?\tthe cat saw a rat", "a book\tthe man reads"],
        ),
    ],
)
def test_heads_to_transformers(architecture, options, lines, tmp_path):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    run = random_run(head_config(**options), tmp_path / "run")
    convert.to_hf(run, tmp_path / "hf")
    model, loading = getattr(transformers, architecture).from_pretrained(
        tmp_path / "hf", output_loading_info=True
    )
    assert not any(loading.values())
    task, params = open_run(run)
    unlabelled = task.unlabelled(list(enumerate(lines, 1)))
    examples = [example for line in unlabelled for example in line.examples]
    rows = [task.row(example) for example in examples]
    names = {"ids": "tokens", "types": "token_types", "filled": "segment_ids"}
    inputs = {
        key: np.stack([row[name] for row in rows]).astype(np.int64)
        for key, name in names.items()
        if name in rows[0]
    }
    assert_outputs(run, inputs, make_heads.computed(model.eval(), **inputs))
    if "labels" in task.config.task and task.config.task.labels:
        assert model.config.id2label == dict(enumerate(task.names))
        assert model.config.label2id == {name: number for number, name in enumerate(task.names)}
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    ids = tokenizer("the cat saw", add_special_tokens=False).input_ids
    assert ids == task.tokenizer.encode(["the cat saw"])[0]
    if options.get("model") in ("gpt", "bart"):
        for line, row in zip(lines, rows, strict=True):
            expected = row["tokens"][row["segment_ids"] > 0].tolist()
            assert tokenizer(*line.split("\t")).input_ids == expected

    overrides = [("task.pair", "2"), ("task.label", "3")] if options.get("pair") else []
    convert.from_hf(tmp_path / "hf", tmp_path / "again", overrides)
    first = jax.tree.map(np.asarray, params)
    second = jax.tree.map(np.asarray, open_run(tmp_path / "again")[1])
    first["token_embed"]["embedding"] = first["token_embed"]["embedding"][: task.model.vocab_size]
    jax.tree.map(np.testing.assert_array_equal, first, second)
