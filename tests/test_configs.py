"""Every config file takes two real steps, made tiny, on eight virtual devices."""
import pathlib

import pytest

from tests.conftest import TINY, write_pairs
from transformer_jax import config as configs
from transformer_jax.training.loop import run
from transformer_jax.workdir import make_task

CONFIGS = pathlib.Path(__file__).parent.parent / "configs"
ARGUMENTS = {"wmt/base.py": ["en-de", "en-fr"], "wmt/big.py": ["en-de", "en-fr"]}


def cases():
    for path in sorted(CONFIGS.rglob("*.py")):
        name = str(path.relative_to(CONFIGS))
        yield from (f"{name}:{argument}" for argument in ARGUMENTS.get(name, [])) if name in ARGUMENTS else [name]


@pytest.mark.parametrize("case", list(cases()))
def test_two_steps(case, tmp_path):
    config = configs.load(str(CONFIGS / case))
    keep = ("model.dropout", "optimizer.warmup_steps")  # the rest of TINY is sizes
    tiny = {**{k: v for k, v in TINY.items() if k not in keep}, "train.num_steps": 2, "data.cache": str(tmp_path / "cache"), "data.tfds_name": None, "data.corpus": "",
            **write_pairs(tmp_path / "text")}
    for key, value in tiny.items():
        configs.set_key(config, key, value)
    found = run(config, make_task(config), tmp_path / "run")
    assert 0 < found["valid/loss"] < 10


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.py")), ids=lambda p: p.stem)
def test_the_header_gives_the_command(path):
    assert "python -m transformer_jax." in configs.load_module(path).__doc__


def test_the_papers_values():
    base, big, fr = (configs.load(str(CONFIGS / f"wmt/{name}")) for name in ("base.py", "big.py", "big.py:en-fr"))
    assert (base.model.d_model, base.model.d_ff, base.model.num_heads, base.model.dropout) == (512, 2048, 8, 0.1)
    assert (big.model.d_model, big.model.d_ff, big.model.num_heads, big.model.dropout, fr.model.dropout) == (1024, 4096, 16, 0.3, 0.1)
    assert (base.model.vocab_size, fr.model.vocab_size, base.train.num_steps, big.train.num_steps) == (37_000, 32_000, 100_000, 300_000)
    for config in (base, big, fr):
        adam, task = config.optimizer, config.task
        assert (adam.b1, adam.b2, adam.eps, adam.schedule, adam.warmup_steps) == (0.9, 0.98, 1e-9, "inverse_sqrt", 4000)
        assert config.model.norm_position == "post" and task.label_smoothing == 0.1
        assert adam.learning_rate == pytest.approx((config.model.d_model * 4000) ** -0.5)
        assert 24_000 < config.train.batch * task.target_length < 26_000
        assert (config.model.num_encoder_layers, config.model.num_decoder_layers) == (6, 6)
