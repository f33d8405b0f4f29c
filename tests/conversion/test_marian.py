"""Conversion of Marian's translation models from and to Hugging Face checkpoints."""

import json

import jax
import numpy as np
import pytest

import transformer_jax
from tests.conversion.checkpoints import (
    CLOSE,
    copied,
    random_run,
    read_json,
    refused,
    rewrite,
    weights,
)
from tests.data.tokenizer_texts import ENGLISH, GERMAN
from tests.fixtures import make_huggingface_marian as make
from tests.fixtures.make_huggingface import HERE
from tests.fixtures.make_huggingface_marian import LINES, MARIAN
from transformer_jax import config as configs
from transformer_jax import convert
from transformer_jax.config import UserError
from transformer_jax.contracts.model import Inputs
from transformer_jax.data.tokenizers import unigram
from transformer_jax.huggingface import family
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task
from transformer_jax.runs.train import train

PEGASUS = "PegasusForConditionalGeneration"


def logits(run, source, filled, target):
    model, params, _ = transformer_jax.load(run)
    apply = jax.jit(model.apply)
    return apply({"params": params}, Inputs(source, segment_ids=filled), target)


def translated(run, lines, **decode):
    task, params = open_run(run, overrides=[(f"decode.{k}", v) for k, v in decode.items()])
    return [best[0].text for best in task.translate(params, lines)]


def assert_equal_files(first, second):
    first, second = weights(first), weights(second)
    assert first.keys() == second.keys()
    for key in first:
        np.testing.assert_array_equal(first[key], second[key], err_msg=key)


@pytest.mark.full
def test_a_checkpoint_equals_transformers_and_is_written_unchanged(tmp_path):
    folder, run, back = HERE / MARIAN, tmp_path / "run", tmp_path / "back"
    convert.from_hf(folder, run)
    expected = np.load(folder / "expected.npz")
    inputs = {key: expected[key] for key in ("source", "filled", "target")}
    np.testing.assert_allclose(logits(run, **inputs), expected["logits"], **CLOSE)
    assert translated(run, LINES, beam=1) == json.loads(str(expected["greedy"]))
    assert translated(run, LINES) == json.loads(str(expected["beams"]))

    convert.to_hf(run, back)
    assert_equal_files(folder, back)
    for name in ("config.json", "generation_config.json"):
        content = read_json(folder / name)
        changed = {"forced_eos_token_id"} if name == "config.json" else set()
        for key, value in read_json(back / name).items():
            assert content.get(key, value) == value or key in changed, key
    convert.from_hf(back, tmp_path / "again")
    first, second = (open_run(path)[0].config for path in (run, tmp_path / "again"))
    assert configs.differences(first, second) == []


def test_two_vocabularies(tmp_path):
    folder = copied(MARIAN, tmp_path / "hf", share_encoder_decoder_embeddings=False)
    vocab = read_json(folder / "vocab.json")
    others = [piece for piece in vocab if piece != "<pad>"][:40]
    target_vocab = {piece: i for i, piece in enumerate([*others, "<pad>"])}
    (folder / "target_vocab.json").write_text(json.dumps(target_vocab))
    sizes = dict(decoder_vocab_size=41, decoder_start_token_id=40, pad_token_id=40)
    (folder / "config.json").write_text(json.dumps(read_json(folder / "config.json") | sizes))
    tensors = weights(folder)
    shared = tensors.pop("model.shared.weight")
    tensors["model.encoder.embed_tokens.weight"] = shared
    tensors["model.decoder.embed_tokens.weight"] = shared[:41].copy()
    tensors["final_logits_bias"] = tensors["final_logits_bias"][:, :41].copy()
    rewrite(folder, tensors)
    convert.from_hf(folder, tmp_path / "run")
    model = open_run(tmp_path / "run")[0].config.model
    assert (model.source_vocab_size, model.vocab_size) == (72, 41)
    convert.to_hf(tmp_path / "run", tmp_path / "back")
    assert_equal_files(folder, tmp_path / "back")
    written = read_json(tmp_path / "back" / "config.json")
    assert not written["share_encoder_decoder_embeddings"]
    assert {key: written[key] for key in sizes} == sizes and written["vocab_size"] == 72
    assert read_json(tmp_path / "back" / "target_vocab.json") == target_vocab


@pytest.mark.parametrize(
    "change, message",
    [
        ({"scale_embedding": False}, "scale_embedding=False: only True is supported"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings=False: only True"),
        ({"decoder_start_token_id": 0}, "decoder_start_token_id: only the value of pad_token_id"),
        (dict.fromkeys(("decoder_start_token_id", "pad_token_id"), 70), "70: vocab.json has 71"),
        ({"decoder_attention_heads": 2}, "decoder_attention_heads=2: only the value of encoder_a"),
        ({"activation_function": "tanh"}, "config.model.activation='tanh'"),
    ],
)
def test_configs_without_an_equivalent_are_refused(change, message, tmp_path):
    refused(copied(MARIAN, tmp_path / "hf", **change), tmp_path, message)


def test_pegasus_is_read_with_the_tokenizer_of_a_marian_alone(tmp_path):
    folder = copied(MARIAN, tmp_path / "hf", architectures=[PEGASUS])
    (folder / "source.spm").unlink()
    refused(folder, tmp_path, "no source.spm: PegasusForConditionalGeneration is read with")


def run_config(folder, norm_position, **keys):
    """Returns the config of a tiny run, whose model has more tokens than its tokenizer."""
    for name, lines in (("train_source", ENGLISH), ("train_target", GERMAN)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    files = {name: str(folder / name) for name in ("train_source", "train_target")}
    config = configs.experiment(
        model=dict(
            name="encoder_decoder",
            vocab_size=83,
            d_model=16,
            d_ff=24,
            num_heads=4,
            num_encoder_layers=2,
            num_decoder_layers=1,
            max_length=48,
            norm_position=norm_position,
            output_bias=True,
        ),
        task=dict(name="translation", source_length=40, target_length=40),
        data=dict(cache=str(folder / "cache"), **files),
        decode=dict(beam=1, max_length=24),
        train=dict(num_steps=70, batch=8, log_every=70),
        optimizer=dict(warmup_steps=10, schedule="constant", learning_rate=0.01),
    )
    for key, value in keys.items():
        configs.set_key(config, key.replace("__", "."), value)
    return config


@pytest.mark.sample("MarianMTModel-post-1e-05")
@pytest.mark.parametrize(
    "architecture, norm, epsilon", [(MARIAN, "post", 1e-5), (PEGASUS, "pre", 1e-6)]
)
def test_a_run_of_ours_is_written_with_the_start_and_the_ids_of_a_marian(
    architecture, norm, epsilon, tmp_path, capsys
):
    run = random_run(run_config(tmp_path, norm, model__norm_epsilon=epsilon), tmp_path / "run")
    convert.to_hf(run, tmp_path / "hf")
    remark = f"norm_epsilon=1e-06: {architecture} has 1e-05"
    assert (remark in " ".join(capsys.readouterr().err.split())) == (epsilon == 1e-6)
    written = read_json(tmp_path / "hf" / "config.json")
    assert written["architectures"] == [architecture] and written["eos_token_id"] == 0
    assert written["pad_token_id"] == written["decoder_start_token_id"] == 82
    options = read_json(tmp_path / "hf" / "generation_config.json")
    assert options["bad_words_ids"] == [[82]] and options["num_beams"] == 1
    start = weights(tmp_path / "hf")["model.shared.weight"][82]
    assert (np.abs(start).max() == 0) == (norm == "post")

    # The parameters of a run from this checkpoint compute what those of the first run do.
    convert.from_hf(tmp_path / "hf", tmp_path / "again")
    model, params, pair = transformer_jax.load(run)
    _, params_again, pair_again = transformer_jax.load(tmp_path / "again")
    _, order = unigram.marian_of_sentence_piece(pair.source, 83)
    for line in LINES:
        ids = pair.source.framed(pair.source.encode(line))
        ids_again = pair_again.source.framed(pair_again.source.encode(line))
        assert [order[i] for i in ids_again] == ids
        assert pair_again.target.decode(ids_again) == pair.target.decode(ids)
    rows = np.random.default_rng(0).integers(0, 83, (2, 2, 9))
    rows[1, :, 0] = pair_again.target.start_id
    apply = jax.jit(model.apply)
    expected, computed = (
        jax.nn.log_softmax(apply({"params": each}, *ids))
        for each, ids in ((params, np.array(order)[rows]), (params_again, rows))
    )
    np.testing.assert_allclose(computed, expected[..., order], **CLOSE)
    convert.to_hf(tmp_path / "again", tmp_path / "back")
    assert_equal_files(tmp_path / "hf", tmp_path / "back")


@pytest.mark.parametrize(
    "keys, message",
    [
        ({"model__positions": "learned"}, "positions=learned: MarianMTModel has only sinusoidal"),
        ({"model__tie_output": False}, "tie_output=False: MarianMTModel has only True"),
        ({"model__head_dim": 8}, "head_dim=8: MarianMTModel has only d_model / num_heads"),
        ({"model__source_vocab_size": 50}, "a SentencePiece model that both languages share"),
    ],
)
def test_runs_without_an_equivalent_are_refused(keys, message, tmp_path):
    config = run_config(tmp_path, "post", **keys)
    with pytest.raises(UserError, match=f"^[^\n]*{message}[^\n]*$"):
        family.run_family(config).write_config(config, make_task(config).tokenizer)


@pytest.mark.parametrize("architecture, norm", [(MARIAN, "post"), (PEGASUS, "pre")])
def test_transformers_and_ctranslate2_translate_as_a_run_of_ours(architecture, norm, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = run_config(tmp_path, norm)
    train(config, tmp_path / "run")
    # MarianTokenizer strips a text that ends at the limit.
    ours = [text.strip() for text in translated(tmp_path / "run", LINES)]
    assert len({*ours}) > len(LINES) - 3 and "Der Hund" in ours[0]
    convert.to_hf(tmp_path / "run", tmp_path / "hf")
    model, loading = getattr(transformers, architecture).from_pretrained(
        tmp_path / "hf", output_loading_info=True
    )
    assert not any(loading.values())
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert type(tokenizer) is transformers.MarianTokenizer
    with torch.no_grad():
        assert make.written(model.eval(), tokenizer, LINES) == ours

    ctranslate2 = pytest.importorskip("ctranslate2")
    # What transformers saves again is the same model.
    model.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    for folder in ("hf", "saved"):
        converter = ctranslate2.converters.TransformersConverter(str(tmp_path / folder))
        converter.convert(str(tmp_path / "ctranslate2" / folder))
        translator = ctranslate2.Translator(str(tmp_path / "ctranslate2" / folder))
        sources = [tokenizer.convert_ids_to_tokens(tokenizer(line).input_ids) for line in LINES]
        results = translator.translate_batch(sources, beam_size=1, max_decoding_length=24)
        ids = [tokenizer.convert_tokens_to_ids(each.hypotheses[0]) for each in results]
        assert [tokenizer.decode(each, skip_special_tokens=True) for each in ids] == ours


def test_random_marians_of_transformers(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    for number, sizes in enumerate(
        [
            dict(activation_function="gelu", encoder_layers=3, decoder_layers=1, d_model=24),
            dict(activation_function="relu", share_encoder_decoder_embeddings=False),
        ]
    ):
        folder = tmp_path / f"hf-{number}"
        make.save_tokenizer(folder)
        if not sizes.get("share_encoder_decoder_embeddings", True):
            (folder / "target_vocab.json").write_bytes((folder / "vocab.json").read_bytes())
        model = make.trained_model(folder, steps=1, **sizes)
        model.save_pretrained(folder)
        inputs = dict(
            source=np.array([[9, 8, 7, 0]]),
            filled=np.ones((1, 4), int),
            target=np.array([[71, 5, 6]]),
        )
        with torch.no_grad():
            expected = model(
                input_ids=torch.tensor(inputs["source"]),
                decoder_input_ids=torch.tensor(inputs["target"]),
            ).logits
        run = tmp_path / f"run-{number}"
        convert.from_hf(folder, run)
        np.testing.assert_allclose(logits(run, **inputs), expected, **CLOSE)
        convert.to_hf(run, tmp_path / f"back-{number}")
        assert_equal_files(folder, tmp_path / f"back-{number}")
        loaded, loading = transformers.MarianMTModel.from_pretrained(
            tmp_path / f"back-{number}", output_loading_info=True
        )
        assert not any(loading.values())
        for first, second in zip(model.parameters(), loaded.parameters(), strict=True):
            assert torch.equal(first, second)


def test_opus_mt_has_as_many_parameters_as_in_transformers():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sizes = dict(encoder_layers=6, decoder_layers=6, encoder_ffn_dim=2048, decoder_ffn_dim=2048)
    heads = dict(encoder_attention_heads=8, decoder_attention_heads=8, d_model=512)
    hf_config = transformers.MarianConfig(scale_embedding=True, **sizes, **heads)
    with torch.device("meta"):
        model = transformers.MarianMTModel(hf_config)
    (marians,) = (each for each in family.families() if each.architecture == MARIAN)
    ours = configs.build_model(
        configs.experiment(
            model=dict(name="encoder_decoder", **marians.model_keys(hf_config.to_dict())),
            task=dict(name="translation"),
        )
    )
    tokens = np.zeros((1, 2), np.int32)
    shapes = jax.eval_shape(ours.init, jax.random.key(0), tokens, tokens)
    count = sum(x.size for x in jax.tree.leaves(shapes))
    # The bias of the logits is no parameter there, and the positions are none here.
    trained = sum(x.numel() for x in model.parameters() if x.requires_grad)
    assert count == trained + model.final_logits_bias.numel()
