"""Fine-tunes a Vision Transformer at a higher resolution (Dosovitskiy et al. 2020, section 4.1).

    python -m transformer_jax.train --config=configs/vit/finetune.py --workdir=DIR \\
        --config.init_from=RUN --config.data.train_files=imagenet/train \\
        --config.data.valid_files=imagenet/valid

RUN is a run of configs/vit/vit.py or configs/vit/mae.py, or a converted checkpoint. Its positions
are interpolated to 384 pixels. `--config.model.image_size` sets another resolution. The head is
new, and its kernel begins with zeros.

The settings are those for ImageNet in table 4: SGD with momentum 0.9, no weight decay, and 20,000
updates of 512 images. Not trained here.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(image_size=24, patch_size=8, d_model=16, d_ff=32, num_layers=2, num_heads=2),
    task=dict(resize=24),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        # The other keys are those of the earlier run.
        model=dict(name="vit", image_size=384),
        task=dict(name="image_classification", crop="random", flip=True, resize=384),
        source=dict(name="images"),
        data=dict(readers=8),
        train=dict(num_steps=20_000, batch=512, log_every=100, eval_every=1000),
        optimizer=dict(
            name="sgd",
            momentum=0.9,
            learning_rate=0.03,
            schedule="cosine",
            warmup_steps=500,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=1000, best_metric="valid/accuracy", best_mode="max"),
        decode=dict(batch=128),
    )
