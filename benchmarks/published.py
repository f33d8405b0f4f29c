"""Tables of papers and lectures, computed again from this package's layers and configs.

python -m transformer_jax.costs

The program prints each figure next to the published one. A computed figure has the published number
of digits. A note explains each difference.
"""

import dataclasses
import pathlib
import re
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.layers.attention import dot_product
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.recurrent import LSTM, Unidirectional
from transformer_jax.planning import estimate

CONFIGS = pathlib.Path(__file__).parent.parent / "configs"
UNITS = {"": 1, "M": 1e6, "B": 1e9}
P100_FLOPS = 9.5e12  # FLOP/s that Vaswani et al. 2017 (section 6.1, footnote 5) assume of a P100
GPT3_TOKENS = 300e9  # Brown et al. 2020, table D.1


@dataclasses.dataclass(frozen=True)
class Row:
    """A computed figure. `printed` is the published one, such as "3.3e18", "65M" or "174.6B"."""

    name: str
    value: float
    printed: str | None  # None: nothing is published
    formula: str  # how `value` is computed
    note: str = ""

    @property
    def agrees(self) -> bool | None:
        return None if self.printed is None else rounded(self.value, self.printed) == self.printed


def rounded(value: float, printed: str) -> str:
    """Returns `value` with the digits and the unit of `printed`."""
    digits, exponent, unit = re.fullmatch(r"([\d.]+)(?:e(\d+))?([MB]?)", printed).groups()
    decimals = len(digits.partition(".")[2])
    scale = 10.0 ** int(exponent) if exponent else UNITS[unit]
    suffix = f"e{exponent}" if exponent else unit
    return f"{value / scale:.{decimals}f}{suffix}"


def layers(length: int = 1000, width: int = 1000, kernel: int = 3) -> list[Row]:
    """Returns the FLOPs of one layer's forward pass over one row, as this package traces them.

    A multiply-add counts as 2 FLOPs. Vaswani et al. 2017, table 1, with its constants.
    """

    def array(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    def attend(queries, keys, values):
        return dot_product(queries, keys, values, Mask())

    def convolve(x, weights):
        numbers = ("NHC", "HIO", "NHC")
        return jax.lax.conv_general_dilated(x, weights, (1,), "SAME", dimension_numbers=numbers)

    heads = array(1, length, 1, width)
    x = array(1, length, width)
    filled = jax.ShapeDtypeStruct((1, length), bool)
    lstm = Unidirectional(LSTM(width))
    weights = jax.eval_shape(lstm.init, jax.random.key(0), x, filled)
    is_published = (length, width, kernel) == (1000, 1000, 3)
    return [
        Row(
            "self-attention",
            estimate.flops(attend, heads, heads, heads),
            "4e9" if is_published else None,
            "4 n^2 d",
            "queries by keys and weights by values; "
            "the four projections, 8 n d^2 more, are left out",
        ),
        Row(
            "recurrence",
            estimate.flops(lstm.apply, weights, x, filled),
            "16e9" if is_published else None,
            "16 n d^2",
            "an LSTM: four gates, each of an input and a recurrent matrix",
        ),
        Row(
            "convolution",
            estimate.flops(convolve, x, array(kernel, width, width)),
            "6e9" if is_published else None,
            "2 k n d^2",
            f"kernel width k = {kernel}, not separable",
        ),
    ]


@dataclasses.dataclass(frozen=True)
class Model:
    """A published model: its config, its published size and its published training compute."""

    name: str
    config: str  # below configs/
    params: str
    note: str = ""
    changes: Mapping = dataclasses.field(default_factory=dict)  # to the config
    flops: str | None = None  # of the training
    flops_note: str = ""


GPT2_NOTE = (
    "the sizes as released; table 2 of Radford et al. 2019 has 117M, 345M, 762M and 1542M, "
    "which their authors called wrong"
)
TURC_NOTE = "with the heads of pre-training, as Turc et al. 2019, table 1, count"
MODELS = (
    Model(
        "Transformer base",
        "wmt/base.py",
        "65M",
        'Vaswani et al. 2017, table 3; a vocabulary of "about 37,000" gives no more, '
        "65M takes 40,700",
    ),
    Model(
        "Transformer big",
        "wmt/big.py",
        "213M",
        "the same table; 213M takes a vocabulary of 36,000, "
        "so no one vocabulary gives both figures",
    ),
    Model(
        "GPT-1",
        "gpt/gpt1.py",
        "117M",
        "as the smallest model of Radford et al. 2019, table 2, "
        'which is "equivalent to the original GPT"',
    ),
    Model("GPT-2 124M", "gpt/gpt2.py:124m", "124M", GPT2_NOTE),
    Model("GPT-2 355M", "gpt/gpt2.py:355m", "355M"),
    Model("GPT-2 774M", "gpt/gpt2.py:774m", "774M"),
    Model("GPT-2 1558M", "gpt/gpt2.py:1558m", "1558M"),
    # the FLOPs of a training: Brown et al. 2020, table D.1
    Model(
        "GPT-3 Small",
        "gpt/gpt3.py:125m",
        "125M",
        "GPT-3: Brown et al. 2020, table D.1",
        flops="2.25e20",
    ),
    Model("GPT-3 Medium", "gpt/gpt3.py:350m", "356M", flops="6.41e20"),
    Model("GPT-3 Large", "gpt/gpt3.py:760m", "760M", flops="1.37e21"),
    Model(
        "GPT-3 XL",
        "gpt/gpt3.py:1.3b",
        "1.32B",
        "table 2.1 has 24 heads of 128 at a width of 2048; 16 heads give the published figure, "
        "the next row",
    ),
    Model(
        "GPT-3 XL, 16 heads",
        "gpt/gpt3.py:1.3b",
        "1.32B",
        changes={"model.num_heads": 16},
        flops="2.38e21",
        flops_note="published from N rounded to 1,320M",
    ),
    Model("GPT-3 2.7B", "gpt/gpt3.py:2.7b", "2.65B", flops="4.77e21"),
    Model("GPT-3 6.7B", "gpt/gpt3.py:6.7b", "6.66B", flops="1.20e22"),
    Model(
        "GPT-3 13B",
        "gpt/gpt3.py:13b",
        "12.85B",
        "table 2.1 has a width of 5140; 40 heads of 128 are 5120, "
        "which give the published figure, the next row",
    ),
    Model(
        "GPT-3 13B, width 5120",
        "gpt/gpt3.py:13b",
        "12.85B",
        changes={"model.d_model": 5120},
        flops="2.31e22",
    ),
    Model("GPT-3 175B", "gpt/gpt3.py:175b", "174.6B", flops="3.14e23"),
    Model("BERT tiny", "bert/small.py:tiny", "4.4M", TURC_NOTE),
    Model("BERT mini", "bert/small.py:mini", "11.3M", TURC_NOTE),
    Model("BERT small", "bert/small.py:small", "29.1M", TURC_NOTE),
    Model("BERT medium", "bert/small.py:medium", "41.7M", TURC_NOTE),
    Model(
        "BERT base",
        "bert/base.py",
        "110.1M",
        f"{TURC_NOTE}; 109.5M without, 110M in Devlin et al. 2018",
    ),
    Model(
        "BERT large",
        "bert/large.py",
        "340M",
        "Devlin et al. 2018, section 3, who round: their published checkpoint has 335.1M without "
        "the heads and 336.2M with them, as here",
    ),
)


def models() -> Iterator[Row]:
    """Yields the parameters of every named model, from its config. Nothing is allocated.

    Raises UserError where the configs are missing, as in an installation without a checkout.
    """
    for model in MODELS:
        flags = "".join(f" --config.{key}={value}" for key, value in model.changes.items())
        params = make_task(model.config, model.changes).parameter_counts()["params"]
        yield Row(model.name, params, model.params, f"configs/{model.config}{flags}", model.note)


# (name, config below configs/, year of publication): the largest model of a paper, dated by the
# month in which the paper, or the model's announcement, appeared.
YEARS = (
    ("Transformer big", "wmt/big.py", 2017 + 5 / 12),
    ("ELMo", "elmo/base.py", 2018 + 1 / 12),
    ("GPT-1", "gpt/gpt1.py", 2018 + 5 / 12),
    ("BERT large", "bert/large.py", 2018 + 9 / 12),
    ("GPT-2", "gpt/gpt2.py:1558m", 2019 + 1 / 12),
    ("ALBERT xxlarge", "albert/xxlarge.py", 2019 + 8 / 12),
    ("T5 11B", "t5/t5.py:11b", 2019 + 9 / 12),
    ("GPT-3", "gpt/gpt3.py:175b", 2020 + 4 / 12),
    ("Llama 2", "decoder/llama2.py:70b", 2023 + 6 / 12),
)


def sizes() -> Iterator[tuple[str, float, int]]:
    """Yields (name, year of publication, parameters) of the largest model of each paper."""
    for name, config, year in YEARS:
        yield name, year, make_task(config).parameter_counts()["params"]


def trainings() -> Iterator[Row]:
    """Yields the FLOPs of trainings: by device hours, by 6ND and by every matrix product."""
    yield from _translation("Transformer base", "wmt/base.py", hours=12, printed="3.3e18")
    yield from _translation("Transformer big", "wmt/big.py", hours=3.5 * 24, printed="2.3e19")
    for model in MODELS:
        if model.flops:
            params = make_task(model.config, model.changes).parameter_counts()["params"]
            yield Row(
                f"{model.name}, 6ND",
                6 * params * GPT3_TOKENS,
                model.flops,
                "6 x N x 300G tokens",
                model.flops_note,
            )
    yield Row(
        "GPT-3 175B, counted",
        estimate.training(make_task("gpt/gpt3.py:175b"))[0],
        None,
        "every matrix product of the config's run, attention included",
    )


def _translation(name: str, config: str, hours: float, printed: str) -> Iterator[Row]:
    """Yields the figures of a model of Vaswani et al. 2017. `printed` is the published figure."""
    task = make_task(config)
    params = task.parameter_counts()["params"]
    flops, positions = estimate.training(task)
    yield Row(
        f"{name}, device hours",
        hours * 3600 * 8 * P100_FLOPS,
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
    )


def make_task(config: str, changes: Mapping | None = None):
    """Returns the task of a file below configs/, with `changes` to its keys."""
    if not CONFIGS.is_dir():
        raise UserError(
            f"{CONFIGS}: no such folder; the tables are made from the configs of a checkout"
        )
    overrides = [(key, str(value)) for key, value in (changes or {}).items()]
    settings = configs.load(str(CONFIGS / config), overrides)
    task_class = configs.named_class("task", settings.task.name)
    return task_class(settings, None, **configs.options(settings.task))
