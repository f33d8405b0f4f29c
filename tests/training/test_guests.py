"""Families in training: golden losses, which every mesh has, and a resumed run is bit-equal.

tests/snapshots/losses.json holds the losses of the first updates on one device. This writes them
again: python -m tests.training.test_guests
"""

import json
import pathlib
import tempfile

import jax
import numpy as np
import pytest

from tests.conftest import build_bert, build_gpt
from tests.tasks import speech
from tests.tasks.images import DECODER, MODEL
from tests.tasks.images import build as build_digits
from tests.tasks.preferences import build_reward
from tests.tasks.test_chat import build as build_chats
from tests.tasks.test_masked_residues import build as build_proteins
from tests.tasks.test_masked_targets import build as build_targets
from tests.training.test_loop import lines, resumed_bit_equal
from tests.training.test_step import losses
from transformer_jax import config as configs
from transformer_jax.runs.spec import make_task
from transformer_jax.training.trainer import Program

SHARED = dict(d_model=16, num_layers=2, num_heads=4, max_length=32)
SEQUENCE_TO_SEQUENCE = dict(
    d_model=16, d_ff=24, num_encoder_layers=2, num_decoder_layers=2, num_heads=4, dropout=0.0
)
MODELS = {
    "decoder": dict(name="decoder", vocab_size=300, d_ff=24, num_kv_heads=2, **SHARED),
    "chat": dict(name="gpt", vocab_size=300, dropout=0.0, attention_dropout=0.0, **SHARED),
    "reward": dict(name="gpt", vocab_size=300, dropout=0.0, attention_dropout=0.0, **SHARED),
    "albert": dict(name="albert", vocab_size=80, d_embed=8, dropout=0.0, attention_dropout=0.0)
    | SHARED,
    "roberta": dict(name="roberta", vocab_size=80, dropout=0.0, attention_dropout=0.0) | SHARED,
    "longformer": dict(name="longformer", vocab_size=80, dropout=0.0, attention_dropout=0.0)
    | SHARED
    | dict(attention_window=(4,), attention_dilation=(1, 2), dilated_heads=2),
    "linformer": dict(name="linformer", vocab_size=80, dropout=0.0, attention_dropout=0.0)
    | SHARED
    | dict(rank=4, sharing="layers"),
    "realformer": dict(name="realformer", vocab_size=80, dropout=0.0, attention_dropout=0.0)
    | SHARED,
    "electra": dict(name="electra", vocab_size=80, d_embed=8, generator_size=0.5, **SHARED)
    | dict(dropout=0.0, attention_dropout=0.0),
    # The rows of an update continue those of the update before.
    "xlnet": dict(name="xlnet", vocab_size=80, d_model=16, num_layers=2, num_heads=4)
    | dict(dropout=0.0, memory_length=12),
    "awd_lstm": dict(name="awd_lstm", vocab_size=300, d_model=16, d_hidden=24)
    | dict.fromkeys(("input_dropout", "layer_dropout", "output_dropout"), 0.0)
    | dict(word_dropout=0.0, weight_dropout=0.0),
    "transformer_xl": dict(name="transformer_xl", vocab_size=300, d_model=16, d_ff=24)
    | dict(num_layers=2, num_heads=4, memory_length=12, dropout=0.0),
    "reformer": dict(name="reformer", vocab_size=300, d_model=16, d_ff=24, num_layers=2)
    | dict(num_heads=4, head_dim=4, local_chunk=4, lsh_chunk=4, buckets=(4,), rounds=2)
    | dict(max_length=32, axial_shape=(4, 8), axial_widths=(8, 8), dropout=0.0),
    "adaptive": dict(name="transformer_xl", vocab_size=300, d_model=16, d_ff=24)
    | dict(num_layers=2, num_heads=4, memory_length=12, dropout=0.0)
    | dict(vocab_multiple=4, adaptive_cutoffs=(50, 120, 260), adaptive_divisor=2),
    "sparse_transformer": dict(name="sparse_transformer", vocab_size=300, dropout=0.0)
    | SHARED
    | dict(stride=4, num_summaries=2, combination="alternated"),
    "unilm": dict(name="bert", vocab_size=80, num_token_types=6, dropout=0.0, attention_dropout=0.0)
    | SHARED,
    "masked targets": dict(name="bert", vocab_size=80, dropout=0.0, attention_dropout=0.0)
    | SHARED
    | dict(max_length=48),
    "bart": dict(name="bart", vocab_size=80, **SEQUENCE_TO_SEQUENCE, max_length=32),
    "t5": dict(name="t5", vocab_size=180, head_dim=4, **SEQUENCE_TO_SEQUENCE),
    "esm": dict(name="esm", vocab_multiple=2, **SHARED),
    "context2vec": dict(name="context2vec", vocab_size=80, d_model=16, d_embed=8),
    "glove": dict(name="glove", vocab_size=80, d_model=8),
    "vit": MODEL,
    "masked patches": MODEL | dict(positions="sinusoidal"),
    "masked speech": speech.MODEL | dict(feature_gradient=0.1),
    "transcripts": speech.MODEL | dict(convolution_norm="group", norm_position="post"),
}
TASKS = {
    "decoder": (build_gpt, dict(name="causal_lm", length=16)),
    "chat": (build_chats, dict(name="chat", length=32)),
    "reward": (
        build_reward,
        dict(name="reward", length=24, completions=4, head_dropout=0.0, reference_examples=8),
    ),
    "albert": (
        build_bert,
        dict(
            name="masked_lm",
            phases=((1.0, 16, 3),),
            second_text="sentence_order",
            whole_words=True,
            ngrams=(6, 3, 2),
        ),
    ),
    "roberta": (
        build_bert,
        dict(name="masked_lm", phases=((1.0, 16, 3),), next_sentence=0.0, full_sentences=True),
    ),
    "longformer": (
        build_bert,
        dict(name="masked_lm", phases=((1.0, 24, 3),), next_sentence=0.0, full_sentences=True),
    ),
    "linformer": (
        build_bert,
        dict(name="masked_lm", phases=((1.0, 24, 3),), next_sentence=0.0, full_sentences=True),
    ),
    "realformer": (build_bert, dict(name="masked_lm", phases=((1.0, 16, 3),))),
    "electra": (build_bert, dict(name="replaced_tokens", phases=((1.0, 16, 4),))),
    "xlnet": (build_bert, dict(name="permuted_lm", length=16)),
    "awd_lstm": (build_gpt, dict(name="causal_lm", length=16, carry=True)),
    "transformer_xl": (build_gpt, dict(name="causal_lm", length=16, carry=True)),
    "reformer": (build_gpt, dict(name="causal_lm", length=16)),
    "adaptive": (build_gpt, dict(name="causal_lm", length=16, carry=True)),
    "sparse_transformer": (build_gpt, dict(name="causal_lm", length=16)),
    "unilm": (build_bert, dict(name="mixed_masks", phases=((1.0, 16, 3),))),
    "masked targets": (
        build_targets,
        dict(name="masked_targets", source_length=24, target_length=12),
    ),
    "context2vec": (
        build_bert,
        dict(name="words_in_context", length=16, negatives=4, shared_noise=8),
    ),
    "glove": (build_bert, dict(name="glove", window=3, length=32)),
    "esm": (build_proteins, dict(name="masked_residues", length=24)),
    "vit": (build_digits, dict(name="image_classification", shift=1, flip=True, mixup=0.2)),
    "masked patches": (build_digits, dict(name="masked_patches", shift=1, **DECODER)),
    "bart": (build_bert, dict(name="denoising", source_length=24, target_length=24)),
    "t5": (
        build_bert,
        dict(
            name="denoising",
            noises=(("span_corruption",),),
            source_length=24,
            target_length=12,
        ),
    ),
    "masked speech": (speech.build, speech.TASKS["masked_speech"]),
    "transcripts": (speech.build, speech.TASKS["ctc"]),
}
STEPS = 3
# Families that draw for each microbatch, as others draw dropout: the rotations of their hashing, or
# the noise of their quantizer.
DRAWING = ("reformer", "masked speech")


def config_of(family, folder, accumulation=1, **mesh):
    build, task = TASKS[family]
    other = build(folder)
    source = other.source.to_dict()
    config = configs.experiment(model=MODELS[family], task=task, source=source, mesh=mesh)
    for section in ("data", "optimizer", "decode"):
        config[section] = other[section]
    train = dict(num_steps=STEPS, log_every=1, batch=8, accumulation=accumulation)
    for key, value in train.items():
        configs.set_key(config, f"train.{key}", value)
    configs.set_key(config, "checkpoint.every", STEPS - 1)
    configs.set_key(config, "data.valid_files", None)  # an evaluation would take longer to compile
    configs.validate(config)
    return config


GOLDEN = pathlib.Path(__file__).parents[1] / "snapshots/losses.json"
# Each family has one of these meshes of two devices in turn; --full adds that of eight.
MESHES = (dict(fsdp=2), dict(tensor=2), dict(data=2))

# Others have their models, or their own tests have a trained run.
FULL = (
    *("chat", "reward", "adaptive", "unilm", "masked targets", "masked patches", "transcripts"),
    *("longformer", "realformer", "albert", "roberta", "esm", "context2vec", "awd_lstm", "bart"),
    *("t5", "electra", "vit", "linformer", "sparse_transformer"),
)


def accumulation_of(family):
    return 1 if family in DRAWING else 2


@pytest.mark.parametrize(
    "family, number",
    [
        pytest.param(name, number, marks=pytest.mark.full if name in FULL else ())
        for number, name in enumerate(MODELS)
    ],
)
def test_a_mesh_has_the_golden_losses_and_a_resumed_run_is_bit_equal(family, number, tmp_path):
    mesh = MESHES[number % len(MESHES)]
    config = config_of(family, tmp_path, accumulation_of(family), **mesh)
    task = make_task(config)
    program = Program.of(config, task, jax.devices()[:2])
    resumed_bit_equal(config, task, program, tmp_path, [STEPS - 1])
    logged = [line["train/loss"] for line in lines(tmp_path / "straight") if "train/loss" in line]
    np.testing.assert_allclose(logged, golden()[family], rtol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("family", MODELS)
def test_one_device_and_eight_have_the_golden_losses(family, tmp_path):
    mesh = dict(accumulation=accumulation_of(family), data=2, fsdp=2, tensor=2)
    for config, devices in (
        (config_of(family, tmp_path), 1),
        (config_of(family, tmp_path, **mesh), 8),
    ):
        np.testing.assert_allclose(losses(config, STEPS, devices)[0], golden()[family], rtol=1e-5)


def golden():
    return json.loads(GOLDEN.read_text())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        measured = {
            name: losses(config_of(name, pathlib.Path(folder) / name), STEPS)[0] for name in MODELS
        }
    GOLDEN.write_text(json.dumps(measured, indent=2) + "\n")
