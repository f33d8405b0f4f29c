"""The configs of published models have the papers' values."""

import pathlib

import jax
import pytest

from transformer_jax import config as configs
from transformer_jax.data.rows import Phase
from transformer_jax.runs.spec import make_task
from transformer_jax.training import step

CONFIGS = pathlib.Path(__file__).parent.parent / "configs"
# Tables 2.1 of Brown et al. 2020; batch in millions of tokens.
GPT_3 = {
    "125m": (12, 768, 12, 64, 0.5, 6e-4),
    "350m": (24, 1024, 16, 64, 0.5, 3e-4),
    "760m": (24, 1536, 16, 96, 0.5, 2.5e-4),
    "1.3b": (24, 2048, 24, 128, 1, 2e-4),
    "2.7b": (32, 2560, 32, 80, 1, 1.6e-4),
    "6.7b": (32, 4096, 32, 128, 2, 1.2e-4),
    "13b": (40, 5140, 40, 128, 2, 1e-4),
    "175b": (96, 12288, 96, 128, 3.2, 6e-5),
}


# Those of transformers' T5ForConditionalGeneration with the published configs. For version 1.1 it
# ties the output, unless it reads a checkpoint that has one, as the published ones do.
T5_PARAMETERS = {
    "t5.py:small": 60_506_624,
    "t5.py:base": 222_903_552,
    "t5.py:large": 737_668_096,
    "t5.py:3b": 2_851_598_336,
    "t5.py:11b": 11_307_321_344,
    "v1_1.py:small": 76_961_152,
    "v1_1.py:base": 247_577_856,
    "v1_1.py:large": 783_150_080,
    "v1_1.py:xl": 2_849_757_184,
    "v1_1.py:xxl": 11_135_332_352,
}
# Those of transformers' ElectraForPreTraining and ElectraForMaskedLM with the published configs.
ELECTRA_PARAMETERS = {
    "small": (13_549_057, 4_620_026),
    "base": (109_483_009, 33_740_602),
    "large": (335_142_913, 51_295_290),
}
# Those of transformers' AlbertForPreTraining, RobertaForMaskedLM and LongformerForMaskedLM with the
# published configs.
PARAMETERS = {
    "albert/base.py": 11_813_810,
    "albert/large.py": 17_847_474,
    "albert/xlarge.py": 59_021_490,
    "albert/xxlarge.py": 223_158_450,
    "roberta/base.py": 124_697_433,
    "roberta/large.py": 355_412_057,
    "longformer/base.py": 148_711_257,
}


def parameters(config):
    """Returns the number of parameters of the model that a task trains."""
    return make_task(config).parameter_counts()["params"]


def assert_values(section, **expected):
    assert {key: section[key] for key in expected} == expected


@pytest.mark.parametrize("name, dropout", [("big.py", 0.3), ("big.py:en-fr", 0.1)])
def test_big_transformer(name, dropout):
    config = configs.load(CONFIGS / "wmt" / name)
    assert_values(config.model, d_model=1024, d_ff=4096, num_heads=16, dropout=dropout)
    assert config.train.num_steps == 300_000


def test_base_transformer():
    config = configs.load(CONFIGS / "wmt/base.py")
    assert_values(config.model, d_model=512, d_ff=2048, num_heads=8, dropout=0.1, vocab_size=37_000)
    assert config.train.num_steps == 100_000


@pytest.mark.parametrize("name", ["base.py", "big.py", "big.py:en-fr"])
def test_transformer(name):
    config = configs.load(CONFIGS / "wmt" / name)
    model = config.model
    assert_values(model, num_encoder_layers=6, num_decoder_layers=6, norm_position="post")
    assert model.vocab_size == (32_000 if name.endswith("fr") else 37_000)
    adam = config.optimizer
    assert_values(adam, b1=0.9, b2=0.98, eps=1e-9, schedule="inverse_sqrt", warmup_steps=4000)
    assert adam.learning_rate == pytest.approx((model.d_model * 4000) ** -0.5)
    assert config.task.label_smoothing == 0.1
    assert 24_000 < config.train.batch * config.task.target_length < 26_000


@pytest.mark.parametrize(
    "name, num_layers, d_model, num_heads",
    [
        ("base.py", 12, 768, 12),
        ("large.py", 24, 1024, 16),
        ("small.py:tiny", 2, 128, 2),
        ("small.py:medium", 8, 512, 8),
    ],
)
def test_bert(name, num_layers, d_model, num_heads):
    config = configs.load(CONFIGS / "bert" / name)
    assert_values(config.model, num_layers=num_layers, d_model=d_model, num_heads=num_heads)
    assert_values(config.model, max_length=512, vocab_size=30_522)
    assert_values(config.train, num_steps=1_000_000, batch=256)
    assert config.task.phases == ((0.9, 128, 20), (0.1, 512, 76))
    adam = config.optimizer
    assert_values(adam, learning_rate=1e-4, schedule="linear", warmup_steps=10_000)
    assert_values(adam, b1=0.9, b2=0.999, weight_decay=0.01)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_of_relatives_of_bert(name):
    assert parameters(configs.load(CONFIGS / name)) == PARAMETERS[name]


@pytest.mark.parametrize(
    "size, num_layers, d_model, head_dim, d_ff, length, count",
    [
        ("base", 16, 410, 41, 2100, 150, 151_119_838),
        ("large", 18, 1024, 64, 4096, 384, 285_205_322),
    ],
)
def test_transformer_xl(size, num_layers, d_model, head_dim, d_ff, length, count):
    """The published scripts for WikiText-103 (Dai et al. 2019)."""
    config = configs.load(CONFIGS / f"transformer_xl/wikitext103.py:{size}")
    assert_values(config.model, vocab_size=267_735, num_layers=num_layers, d_model=d_model)
    assert_values(config.model, d_ff=d_ff, memory_length=length)
    assert config.model.d_model // config.model.num_heads == head_dim
    assert config.model.adaptive_cutoffs == (20_000, 40_000, 200_000)
    assert config.task.length == length
    assert_values(config.optimizer, name="adam", learning_rate=2.5e-4, schedule="cosine")
    assert parameters(config) == count


def test_transformer_xl_large_has_the_parameters_of_the_paper_with_16_layers():
    changes = {"model.num_layers": 16}
    config = configs.load(CONFIGS / "transformer_xl/wikitext103.py:large", changes)
    assert parameters(config) == 257_919_818


@pytest.mark.parametrize("size", GPT_3)
def test_gpt_3(size):
    """Tables 2.1 and 2.2 and appendix B of Brown et al. 2020."""
    num_layers, d_model, num_heads, head_dim, batch, learning_rate = GPT_3[size]
    config = configs.load(CONFIGS / f"gpt/gpt3.py:{size}")
    assert_values(config.model, num_layers=num_layers, d_model=d_model, num_heads=num_heads)
    assert_values(config.model, head_dim=head_dim, max_length=2048)
    adam = config.optimizer
    assert_values(adam, learning_rate=learning_rate, schedule="cosine", final_fraction=0.1)
    assert_values(adam, b1=0.9, b2=0.95, eps=1e-8, clip_norm=1.0, weight_decay=0.1)
    assert [weight for _, weight in config.data.mixture] == [60, 22, 8, 8, 3]
    assert not config.data.mask_documents

    train = config.train
    assert train.batch * 2048 == pytest.approx(batch * 1e6, rel=0.06)
    assert train.first_batch * 2048 == 32_768
    phase = Phase([], train.batch, first_batch=train.first_batch, ramp_steps=train.ramp_steps)

    def tokens(steps):
        return 2048 * phase.rows_before(steps)

    assert tokens(train.num_steps) == pytest.approx(300e9, rel=1e-4)
    assert tokens(adam.decay_steps) == pytest.approx(260e9, rel=1e-4)
    assert tokens(adam.warmup_steps) == pytest.approx(375e6, rel=1e-3)
    assert 4e9 <= tokens(train.ramp_steps) <= 12.01e9


@pytest.mark.parametrize(
    "size, layers, d_model, num_parameters",
    [("base", 6, 768, 139_420_416), ("large", 12, 1024, 406_291_456)],
)
def test_bart(size, layers, d_model, num_parameters):
    """Lewis et al. 2019, sections 2.1, 4 and 5.1. The counts are those of transformers."""
    config = configs.load(CONFIGS / f"bart/{size}.py")
    model = config.model
    assert_values(model, d_model=d_model, d_ff=4 * d_model, num_heads=d_model // 64)
    assert_values(model, num_encoder_layers=layers, num_decoder_layers=layers, max_length=1024)
    assert parameters(config) == num_parameters
    assert config.task.noises == (("permutation",), ("infilling", 0.3))
    published = dict(batch=8000, num_steps=500_000) if size == "large" else dict(num_steps=10**6)
    assert_values(config.train, **published)


@pytest.mark.parametrize("name", T5_PARAMETERS)
def test_t5(name):
    """Raffel et al. 2020, sections 3.1 and 3.7, and the published configurations."""
    config = configs.load(CONFIGS / f"t5/{name}")
    assert parameters(config) == T5_PARAMETERS[name]
    assert_values(config.model, gated="v1_1" in name, tie_output="v1_1" not in name)
    assert_values(config.model, num_buckets=32, max_distance=128, vocab_size=32_128)
    assert_values(config.task, source_length=512, target_length=114)
    assert config.task.noises == (("span_corruption", 0.15, 3),)
    assert_values(config.train, num_steps=10**6, batch=2048)
    adafactor = config.optimizer
    assert_values(adafactor, name="adafactor", warmup_steps=10_000, learning_rate=0.01)


def test_gpt():
    config = configs.load(CONFIGS / "gpt/gpt1.py")
    assert_values(config.model, norm_position="post", max_length=512)
    assert config.train.batch == 64
    assert_values(config.optimizer, learning_rate=2.5e-4, warmup_steps=2000, weight_decay=0.01)


def test_gpt_2():
    config = configs.load(CONFIGS / "gpt/gpt2.py:1558m")
    assert_values(config.model, norm_position="pre", scaled_init=True)
    assert_values(config.model, max_length=1024, vocab_size=50_257)
    assert config.train.batch == 512


@pytest.mark.parametrize("size", ELECTRA_PARAMETERS)
def test_electra(size):
    task = make_task(configs.load(CONFIGS / f"electra/electra.py:{size}"))
    params = step.abstract_params(task)
    discriminator = {name: tree for name, tree in params.items() if name != "generator"}
    generator = task.model.narrow_params(params)
    sizes = (tree_size(discriminator), tree_size(generator))
    assert sizes == ELECTRA_PARAMETERS[size]


def tree_size(params):
    return sum(leaf.size for leaf in jax.tree.leaves(params))
