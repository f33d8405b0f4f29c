"""The tables of papers and lectures, computed anew: each row beside what is published, to its
printed digits, or with a note on why it differs.
"""

import dataclasses
import pathlib
import re
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.layers.kernels import dot_product
from transformer_jax.layers.lstm import LSTM
from transformer_jax.layers.masks import Mask
from transformer_jax.planning import counts, traced

CONFIGS = pathlib.Path(__file__).parent.parent.parent / "configs"
_SCALES = {"": 1, "M": 1e6, "B": 1e9}
_P100 = 9.5e12  # FLOP/s that Vaswani et al. 2017 (section 6.1, footnote 5) take a P100 to sustain


@dataclasses.dataclass(frozen=True)
class Row:
    """`printed`: as published, such as "3.3e18", "65M", "174.6B"; None where nothing is. `formula`:
    how `value` came about.
    """

    name: str
    value: float
    printed: str | None
    formula: str
    note: str = ""

    @property
    def agrees(self) -> bool | None:
        return None if self.printed is None else rounded(self.value, self.printed) == self.printed


def rounded(value: float, printed: str) -> str:
    """`value` with the digits and the unit of `printed`."""
    digits, exponent, unit = re.fullmatch(r"([\d.]+)(?:e(\d+))?([MB]?)", printed).groups()
    decimals = len(digits.partition(".")[2])
    scale = 10.0 ** int(exponent) if exponent else _SCALES[unit]
    return f"{value / scale:.{decimals}f}" + (f"e{exponent}" if exponent else unit)


def layers(length: int = 1000, width: int = 1000, kernel: int = 3) -> list[Row]:
    """A forward pass of one layer over one row, as traced in this package's layers: 2 FLOPs a
    multiply-add (Vaswani et al. 2017, table 1, with its constants).
    """
    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    heads = array(1, length, 1, width)
    x, filled, lstm = array(1, length, width), jax.ShapeDtypeStruct((1, length), bool), LSTM(width)
    weights = jax.eval_shape(lstm.init, jax.random.key(0), x, filled)
    convolve = lambda x, w: jax.lax.conv_general_dilated(
        x, w, (1,), "SAME", dimension_numbers=("NHC", "HIO", "NHC")
    )
    found = {
        "self-attention": traced.flops(
            lambda q, k, v: dot_product(q, k, v, Mask()), heads, heads, heads
        ),
        "recurrence": traced.flops(lstm.apply, weights, x, filled),
        "convolution": traced.flops(convolve, x, array(kernel, width, width)),
    }
    published = (length, width, kernel) == (1000, 1000, 3)
    return [
        Row(
            "self-attention",
            found["self-attention"],
            "4e9" if published else None,
            "4 n^2 d",
            "queries by keys and weights by values; the four projections, 8 n d^2 more, are left out",
        ),
        Row(
            "recurrence",
            found["recurrence"],
            "16e9" if published else None,
            "16 n d^2",
            "an LSTM: four gates, each of an input and a recurrent matrix",
        ),
        Row(
            "convolution",
            found["convolution"],
            "6e9" if published else None,
            "2 k n d^2",
            f"kernel width k = {kernel}, not separable",
        ),
    ]


# name, config, what it changes there, which count, as published, note
_GPT2 = "the sizes as released; table 2 of Radford et al. 2019 has 117M, 345M, 762M and 1542M, which their authors called wrong"
_TURC = "with the heads of pre-training, as Turc et al. 2019, table 1, count"
_MODELS = (
    (
        "Transformer base",
        "wmt/base.py",
        {},
        "params",
        "65M",
        'Vaswani et al. 2017, table 3; a vocabulary of "about 37,000" gives no more, 65M takes 40,700',
    ),
    (
        "Transformer big",
        "wmt/big.py",
        {},
        "params",
        "213M",
        "the same table; 213M takes a vocabulary of 36,000, so no one vocabulary gives both figures",
    ),
    (
        "GPT-1",
        "gpt/gpt1.py",
        {},
        "params",
        "117M",
        'as the smallest model of Radford et al. 2019, table 2, which is "equivalent to the original GPT"',
    ),
    ("GPT-2 124M", "gpt/gpt2.py:124m", {}, "params", "124M", _GPT2),
    ("GPT-2 355M", "gpt/gpt2.py:355m", {}, "params", "355M", ""),
    ("GPT-2 774M", "gpt/gpt2.py:774m", {}, "params", "774M", ""),
    ("GPT-2 1558M", "gpt/gpt2.py:1558m", {}, "params", "1558M", ""),
    (
        "GPT-3 Small",
        "gpt/gpt3.py:125m",
        {},
        "params",
        "125M",
        "GPT-3: Brown et al. 2020, table D.1",
    ),
    ("GPT-3 Medium", "gpt/gpt3.py:350m", {}, "params", "356M", ""),
    ("GPT-3 Large", "gpt/gpt3.py:760m", {}, "params", "760M", ""),
    (
        "GPT-3 XL",
        "gpt/gpt3.py:1.3b",
        {},
        "params",
        "1.32B",
        "table 2.1 has 24 heads of 128 at a width of 2048; 16 heads give the published figure, the next row",
    ),
    ("GPT-3 XL, 16 heads", "gpt/gpt3.py:1.3b", {"model.num_heads": 16}, "params", "1.32B", ""),
    ("GPT-3 2.7B", "gpt/gpt3.py:2.7b", {}, "params", "2.65B", ""),
    ("GPT-3 6.7B", "gpt/gpt3.py:6.7b", {}, "params", "6.66B", ""),
    (
        "GPT-3 13B",
        "gpt/gpt3.py:13b",
        {},
        "params",
        "12.85B",
        "table 2.1 has a width of 5140; 40 heads of 128 are 5120, which give the published figure, the next row",
    ),
    ("GPT-3 13B, width 5120", "gpt/gpt3.py:13b", {"model.d_model": 5120}, "params", "12.85B", ""),
    ("GPT-3 175B", "gpt/gpt3.py:175b", {}, "params", "174.6B", ""),
    ("BERT tiny", "bert/small.py:tiny", {}, "params", "4.4M", _TURC),
    ("BERT mini", "bert/small.py:mini", {}, "params", "11.3M", _TURC),
    ("BERT small", "bert/small.py:small", {}, "params", "29.1M", _TURC),
    ("BERT medium", "bert/small.py:medium", {}, "params", "41.7M", _TURC),
    (
        "BERT base",
        "bert/base.py",
        {},
        "params",
        "110.1M",
        f"{_TURC}; 109.5M without, 110M in Devlin et al. 2018",
    ),
    (
        "BERT large",
        "bert/large.py",
        {},
        "params",
        "340M",
        "Devlin et al. 2018, section 3, who round: their published checkpoint has 335.1M without the heads and 336.2M with them, as here",
    ),
)


def models() -> Iterator[Row]:
    """Parameters of every named model, from its config; nothing is allocated. Raises UserError
    where there are no configs, as in an installation without them.
    """
    for name, file, changes, key, printed, note in _MODELS:
        yield Row(
            name,
            counts.parameters(_task(file, changes))[key],
            printed,
            f"configs/{file}"
            + "".join(f" --config.{key}={value}" for key, value in changes.items()),
            note,
        )


def trainings() -> Iterator[Row]:
    """What training cost: by the model (6ND, and its matrix products one by one), and by what the
    machines could have done meanwhile.
    """
    for name, file, hours, printed in (
        ("Transformer base", "wmt/base.py", 12, "3.3e18"),
        ("Transformer big", "wmt/big.py", 3.5 * 24, "2.3e19"),
    ):
        task = _task(file, {})
        params, (flops, positions) = counts.parameters(task)["params"], counts.training(task)
        yield Row(
            f"{name}, device hours",
            hours * 3600 * 8 * _P100,
            printed,
            f"{hours:g} h x 8 P100 x 9.5 TFLOP/s",
            "Vaswani et al. 2017, table 2: time by the rate of the chips, used or not",
        )
        yield Row(
            f"{name}, 6ND",
            6 * params * positions,
            None,
            f"6 x {params / 1e6:.1f}M x {positions / 1e9:.2f}G target positions",
            "a weight of the encoder meets the source positions, as many, in place of the target's",
        )
        yield Row(
            f"{name}, counted",
            flops,
            None,
            "every matrix product of the config's run, attention included, padding too",
            "",
        )
    for name, file, changes, _, _, _ in (model for model in _MODELS if model[0] in _GPT3):
        params = counts.parameters(_task(file, changes))["params"]
        yield Row(f"{name}, 6ND", 6 * params * 300e9, *_GPT3[name])
    task = _task("gpt/gpt3.py:175b", {})
    yield Row(
        "GPT-3 175B, counted",
        counts.training(task)[0],
        None,
        "every matrix product of the config's run, attention included",
        "",
    )


_6ND = "6 x N x 300G tokens"
_GPT3 = {  # Brown et al. 2020, table D.1: total training compute, FLOPs
    "GPT-3 Small": ("2.25e20", _6ND),
    "GPT-3 Medium": ("6.41e20", _6ND),
    "GPT-3 Large": ("1.37e21", _6ND),
    "GPT-3 XL, 16 heads": ("2.38e21", _6ND, "published from N rounded to 1,320M"),
    "GPT-3 2.7B": ("4.77e21", _6ND),
    "GPT-3 6.7B": ("1.20e22", _6ND),
    "GPT-3 13B, width 5120": ("2.31e22", _6ND),
    "GPT-3 175B": ("3.14e23", _6ND),
}


def _task(file: str, changes: dict):
    if not CONFIGS.is_dir():
        raise UserError(
            f"{CONFIGS}: no such folder; the tables are made from the configs of a checkout"
        )
    config = configs.load(
        str(CONFIGS / file), [(key, str(value)) for key, value in changes.items()]
    )
    return configs.named_class("task", config.task.name)(
        config, None, **configs.options(config.task)
    )
