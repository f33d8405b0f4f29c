"""RealFormer beside BERT: norms after the sublayers, before them, and residual attention.

python -m transformer_jax.compare benchmarks/realformer.py:post benchmarks/realformer.py:pre \\
    benchmarks/realformer.py:residual --score=valid/accuracy,valid/loss --pairs=8 --workdir=DIR
cp DIR/comparison.json benchmarks/results/realformer_cpu.json

The three encoders have four layers of 128 and the settings of configs/bert/quickstart.py, whose
text is the documentation of Python's standard library: nothing is downloaded. The norm behind the
last layer of `pre` is the only parameter that the others lack. The measures are those of masked
tokens in held-out documents (He et al. 2020).

A run is 2,500 updates of 48 rows, of 32 tokens in the first nine tenths and of 64 in the last. It
takes about 6 minutes on 2 cores, so that 3 x 8 runs take 2.4 hours.
"""

import pathlib

from transformer_jax.config import experiment, load_module

MODELS = {
    "post": "bert",
    "pre": str(pathlib.Path(__file__).parent / "pre_norm.py"),
    "residual": "realformer",
}
base = load_module("bert/quickstart")
TINY = base.TINY


def get_config(model="post"):
    config = base.get_config().to_dict()
    sections = {name: config[name] for name in ("task", "data", "optimizer")}
    return experiment(
        model=config["model"] | dict(name=MODELS[model], num_layers=4, unroll=4),
        train=config["train"] | dict(num_steps=2500, eval_every=0.2),
        checkpoint=config["checkpoint"] | dict(every=0.1),
        **sections,
    )
