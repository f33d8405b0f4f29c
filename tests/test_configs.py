"""Every config file takes two real steps, made tiny, on eight virtual devices."""

import json
import pathlib

import pytest

from tests.conftest import TINY, write_pairs
from tests.finetuning.examples import pretrained, written_for
from transformer_jax import config as configs
from transformer_jax.configuration import run_length
from transformer_jax.data.rows import Phase
from transformer_jax.runs import begin
from transformer_jax.runs.begin import fine_tunes
from transformer_jax.runs.resolve import make_task, resolve
from transformer_jax.training.loop import run

CONFIGS = pathlib.Path(__file__).parent.parent / "configs"
ARGUMENTS = {
    "wmt/base.py": ["en-de", "en-fr"],
    "wmt/big.py": ["en-de", "en-fr"],
    "gpt/shakespeare_char.py": ["gpu", "cpu"],
    "gpt/gpt2.py": ["124m"],
    "gpt/gpt3.py": ["175b"],
    "gpt/imdb.py": ["cpu", "tiny"],
    "bert/small.py": ["mini"],
    "bert/imdb.py": ["cpu", "gpu"],
    "finetune/glue.py": ["cola", "mrpc", "mrpc,gpt", "stsb", "mnli"],
    "finetune/sentiment.py": ["imdb", "olid"],
    # made tiny, the other sizes are the same
    "finetune/squad.py": ["1.1", "2.0"],
    "finetune/ner.py": ["conll2003", "wikiann-cpu,features=last"],
}
OF_EACH_KIND = (
    "wmt/multi30k.py",
    "gpt/to_de.py",
    "gpt/gpt3.py:175b",
    "bert/base.py",
    "finetune/glue.py:stsb",
    "finetune/glue.py:mrpc,gpt",
    "finetune/squad.py:2.0",
    # made tiny, the others differ little from these: --slow
    "finetune/ner.py:wikiann-cpu,features=last",
    "finetune/swag.py",
)
BERT = {
    "model.vocab_size": 96,
    "model.d_model": 16,
    "model.num_layers": 2,
    "model.num_heads": 2,
    "model.max_length": 64,
}
KEPT = ("model.dropout", "optimizer.warmup_steps")  # the rest of TINY is sizes
GPT = {
    "model.vocab_size": 300,
    "model.d_model": 16,
    "model.num_layers": 2,
    "model.num_heads": 2,
    "model.head_dim": 8,
    "model.max_length": 32,
    "task.length": 16,
    "train.first_batch": 0,
    "train.ramp_steps": 0,
    "data.mixture": (),
}


def cases():
    for path in sorted(CONFIGS.rglob("*.py")):
        name = str(path.relative_to(CONFIGS))
        yield from (
            (f"{name}:{argument}" for argument in ARGUMENTS.get(name, []))
            if name in ARGUMENTS
            else [name]
        )


@pytest.mark.parametrize(
    "case",
    [
        case if case in OF_EACH_KIND else pytest.param(case, marks=pytest.mark.slow)
        for case in cases()
    ],
)
def test_two_steps(case, tmp_path):
    config = configs.load(str(CONFIGS / case))
    if fine_tunes(config):
        return fine_tuned_two_steps(config, tmp_path)
    text = write_pairs(tmp_path / "text")
    tiny = {k: v for k, v in TINY.items() if k not in KEPT} | {
        "train.num_steps": 2,
        "data.cache": str(tmp_path / "cache"),
        "data.tfds_name": None,
        "data.corpus": "",
    }
    if config.task.name == "masked_lm":
        tiny = (
            {k: v for k, v in tiny.items() if k in configs.schema("bert", "masked_lm")}
            | BERT
            | {"data.tokenizer": "wordpiece"}
        )
        tiny |= {
            f"data.{split}_files": sentences_of(text[f"data.{split}_source"])
            for split in ("train", "valid")
        }
        tiny["task.phases"] = tuple(
            (share, 16 * number, 3) for number, (share, _, _) in enumerate(config.task.phases, 1)
        )
    elif config.task.name == "causal_lm":
        files = (
            text
            if config.data.marker
            else {
                f"data.{split}_files": text[f"data.{split}_source"] for split in ("train", "valid")
            }
        )
        tiny = (
            {k: v for k, v in tiny.items() if k in configs.schema("gpt", "causal_lm")}
            | GPT
            | files
            | {"data.tokenizer": config.data.tokenizer}
        )
        tiny["task.sample_tokens"] = min(config.task.sample_tokens, 8)
        tiny["model.local_window"] = config.model.local_window and 4
    else:
        tiny |= text
    for key, value in tiny.items():
        configs.set_key(config, key, value)
    found = run(config, make_task(config), tmp_path / "run")
    assert 0 < found["valid/loss"] < 10


def fine_tuned_two_steps(config, tmp_path):
    tiny = {k: v for k, v in TINY.items() if k.startswith(("train.", "checkpoint."))} | {
        "train.num_steps": 2,
        "init_from": str(pretrained(tmp_path, config.model.name)),
        "task.length": 32,
    }
    tiny |= {"task.stride": 8, "task.max_question": 8} if config.task.name == "span" else {}
    for key, value in (tiny | written_for(config, tmp_path / "examples")).items():
        configs.set_key(config, key, value)
    config = resolve(config, tmp_path / "run").config
    origin = begin.origin(config, tmp_path / "run")
    found = run(config, make_task(config), tmp_path / "run", origin=origin)
    assert 0 < found["valid/loss"] < 20 and config.checkpoint.best_metric in found


def sentences_of(path):
    """The file's lines as documents of three sentences."""
    lines = pathlib.Path(path).read_text().splitlines()
    found = pathlib.Path(path).with_suffix(".documents")
    found.write_text("\n\n".join("\n".join(lines[i : i + 3]) for i in range(0, len(lines), 3)))
    return str(found)


LENGTHS = json.loads((CONFIGS.parent / "tests/snapshots/updates.json").read_text())


def test_every_config_has_its_length_recorded():
    files = {str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("*.py")}
    assert {case.partition(":")[0] for case in LENGTHS} == files


@pytest.mark.parametrize("case, expected", LENGTHS.items(), ids=LENGTHS)
def test_fractions_give_the_updates_of_the_full_length(case, expected):
    config = configs.load(str(CONFIGS / case))
    num_steps, decay_steps = config.train.num_steps, config.optimizer.decay_steps
    eval_every, save_every = run_length.intervals(config)
    assert expected == {
        "train.num_steps": num_steps,
        "optimizer.warmup_steps": run_length.span(config.optimizer.warmup_steps, num_steps),
        "optimizer.decay_steps": decay_steps and run_length.span(decay_steps, num_steps),
        "train.eval_every": eval_every,
        "checkpoint.every": save_every,
    }
    assert not run_length.saves_at_evaluations(config) or eval_every == save_every == num_steps


def test_a_shortened_run_keeps_its_proportions():
    """And one that keeps the long run's updates says so, with the flags that help."""
    short = configs.load(str(CONFIGS / "bert/imdb.py:cpu"), {"train.num_steps": 1500})
    assert run_length.intervals(short) == (750, 750) and not run_length.warnings(short)
    assert run_length.span(short.optimizer.warmup_steps, 1500) == 94
    long = configs.load(str(CONFIGS / "bert/base.py"), {"train.num_steps": 1500})
    intervals, warmup = run_length.warnings(long)
    assert intervals == (
        "warning: the run of 1500 updates is evaluated at its end alone "
        "(config.train.eval_every=10000) and is saved at its end and every 15 minutes "
        "(config.checkpoint.every=10000); "
        "--config.train.eval_every=0.1 --config.checkpoint.every=0.1 means every tenth of the run"
    )
    assert "config.optimizer.warmup_steps=10000" in warmup and "warmup_steps=0.1 means" in warmup
    configs.set_key(long, "checkpoint.minutes", "0")
    assert "saved at its end alone (" in run_length.warnings(long)[0]


def test_berts_published_values():
    for size, (layers, width, heads) in {
        "base.py": (12, 768, 12),
        "large.py": (24, 1024, 16),
        "small.py:tiny": (2, 128, 2),
        "small.py:medium": (8, 512, 8),
    }.items():
        config = configs.load(str(CONFIGS / "bert" / size))
        model, train, adam = config.model, config.train, config.optimizer
        assert (
            model.num_layers,
            model.d_model,
            model.num_heads,
            model.max_length,
            model.vocab_size,
        ) == (layers, width, heads, 512, 30_522)
        assert (train.num_steps, train.batch, config.task.phases) == (
            1_000_000,
            256,
            ((0.9, 128, 20), (0.1, 512, 76)),
        )
        assert (
            adam.learning_rate,
            adam.schedule,
            adam.warmup_steps,
            adam.b1,
            adam.b2,
            adam.weight_decay,
        ) == (1e-4, "linear", 10_000, 0.9, 0.999, 0.01)


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.py")), ids=lambda p: p.stem)
def test_the_header_gives_the_command(path):
    assert "python -m transformer_jax." in configs.load_module(path).__doc__


def test_the_papers_values():
    base, big, fr = (
        configs.load(str(CONFIGS / f"wmt/{name}")) for name in ("base.py", "big.py", "big.py:en-fr")
    )
    assert (base.model.d_model, base.model.d_ff, base.model.num_heads, base.model.dropout) == (
        512,
        2048,
        8,
        0.1,
    )
    assert (
        big.model.d_model,
        big.model.d_ff,
        big.model.num_heads,
        big.model.dropout,
        fr.model.dropout,
    ) == (1024, 4096, 16, 0.3, 0.1)
    assert (
        base.model.vocab_size,
        fr.model.vocab_size,
        base.train.num_steps,
        big.train.num_steps,
    ) == (37_000, 32_000, 100_000, 300_000)
    for config in (base, big, fr):
        adam, task = config.optimizer, config.task
        assert (adam.b1, adam.b2, adam.eps, adam.schedule, adam.warmup_steps) == (
            0.9,
            0.98,
            1e-9,
            "inverse_sqrt",
            4000,
        )
        assert config.model.norm_position == "post" and task.label_smoothing == 0.1
        assert adam.learning_rate == pytest.approx((config.model.d_model * 4000) ** -0.5)
        assert 24_000 < config.train.batch * task.target_length < 26_000
        assert (config.model.num_encoder_layers, config.model.num_decoder_layers) == (6, 6)


def test_gpt_3s_tables():
    """Tables 2.1 and 2.2 and appendix B of Brown et al. 2020, read back from the configs."""
    table = {
        "125m": (12, 768, 12, 64, 0.5, 6e-4),
        "350m": (24, 1024, 16, 64, 0.5, 3e-4),
        "760m": (24, 1536, 16, 96, 0.5, 2.5e-4),
        "1.3b": (24, 2048, 24, 128, 1, 2e-4),
        "2.7b": (32, 2560, 32, 80, 1, 1.6e-4),
        "6.7b": (32, 4096, 32, 128, 2, 1.2e-4),
        "13b": (40, 5140, 40, 128, 2, 1e-4),
        "175b": (96, 12288, 96, 128, 3.2, 6e-5),
    }
    for size, (layers, width, heads, head_dim, batch, rate) in table.items():
        config = configs.load(str(CONFIGS / f"gpt/gpt3.py:{size}"))
        model, train, adam = config.model, config.train, config.optimizer
        assert (
            model.num_layers,
            model.d_model,
            model.num_heads,
            model.head_dim,
            model.max_length,
            adam.learning_rate,
        ) == (layers, width, heads, head_dim, 2048, rate)
        assert (
            train.batch * 2048 == pytest.approx(batch * 1e6, rel=0.06)
            and train.first_batch * 2048 == 32_768
        )
        phase = Phase([], train.batch, first_batch=train.first_batch, ramp_steps=train.ramp_steps)
        tokens = lambda steps: 2048 * phase.before(steps)
        assert tokens(train.num_steps) == pytest.approx(300e9, rel=1e-4) and tokens(
            adam.decay_steps
        ) == pytest.approx(260e9, rel=1e-4)
        assert (
            tokens(adam.warmup_steps) == pytest.approx(375e6, rel=1e-3)
            and 4e9 <= tokens(train.ramp_steps) <= 12.01e9
        )
        assert (
            adam.b1,
            adam.b2,
            adam.eps,
            adam.clip_norm,
            adam.weight_decay,
            adam.schedule,
            adam.final_fraction,
        ) == (0.9, 0.95, 1e-8, 1.0, 0.1, "cosine", 0.1)
        assert [weight for _, weight in config.data.mixture] == [
            60,
            22,
            8,
            8,
            3,
        ] and not config.data.mask_documents


def test_gpts_published_values():
    one, two = (
        configs.load(str(CONFIGS / "gpt/gpt1.py")),
        configs.load(str(CONFIGS / "gpt/gpt2.py:1558m")),
    )
    assert (
        one.model.norm_position,
        one.model.max_length,
        one.train.batch,
        one.optimizer.learning_rate,
        one.optimizer.warmup_steps,
        one.optimizer.weight_decay,
    ) == ("post", 512, 64, 2.5e-4, 2000, 0.01)
    assert (
        two.model.norm_position,
        two.model.scaled_init,
        two.model.max_length,
        two.model.vocab_size,
        two.train.batch,
    ) == ("pre", True, 1024, 50_257, 512)
