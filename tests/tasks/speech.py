"""Tiny configs of speech: tones as letters, which a manifest names."""

import pathlib

from tests.conftest import updates
from tests.examples import masked_speech as tones
from transformer_jax import config as configs

MODEL = dict(
    name="wav2vec2",
    d_model=16,
    num_layers=2,
    num_heads=4,
    convolution_widths=(16, 16),
    convolution_kernels=(32, 10),
    convolution_strides=(16, 10),
    convolution_norm="layer",
    position_kernel=6,
    position_groups=2,
    codes=8,
    d_code=8,
    d_projection=8,
    norm_position="pre",
    feature_gradient=1.0,
    init_std=0.1,
    dropout=0.0,
    attention_dropout=0.0,
    hidden_dropout=0.0,
)
TASKS = {
    "masked_speech": dict(name="masked_speech", seconds=0.4, span=4, distractors=5, masked=0.5),
    "ctc": dict(
        name="ctc",
        seconds=0.6,
        characters=8,
        vocabulary=("<pad>", "|", "A", "E", "T", "O", "<unk>"),
        masked=0.0,
        freeze_features=False,
    ),
}


def build(folder: pathlib.Path, task: str = "ctc", **overrides):
    """Returns a tiny config; overrides are written model__dropout=0.1."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest = folder / "manifest.tsv"
    if not manifest.exists():
        manifest.write_text(tones.write_sound(folder, 8))
    config = configs.experiment(
        model=MODEL,
        task=TASKS[task],
        source=dict(name="sound"),
        data=dict(
            train_files=str(manifest), valid_files=str(manifest), cache=str(folder / "cache")
        ),
        train=dict(num_steps=updates(160), batch=8, log_every=40, eval_every=updates(160)),
        optimizer=dict(learning_rate=1e-2, schedule="linear", warmup_steps=0.1, clip_norm=1.0),
        checkpoint=dict(every=updates(160)),
        decode=dict(batch=8, beam=1),
    )
    for key, value in overrides.items():
        configs.set_key(config, key.replace("__", "."), value)
    configs.validate(config)
    return config
