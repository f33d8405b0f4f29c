"""A wrong name leads to the right one; every key has a meaning; `train` takes any task."""

import importlib
import pathlib

import pytest

import transformer_jax
from tests.programs import here, refused
from transformer_jax import cli
from transformer_jax import config as configs
from transformer_jax.config import UserError

ROOT = pathlib.Path(__file__).parent.parent
FAMILIES = {"gpt": "causal_lm", "bert": "masked_lm", "encoder_decoder": "translation"}
FINE_TUNING = ("classification", "span", "tagging", "choice")
PAIRS = [*FAMILIES.items(), *(("bert", task) for task in FINE_TUNING)]


def test_synonyms_lead_to_keys_and_flags_that_exist():
    keys = {key for pair in PAIRS for key in configs.schema(*pair)}
    assert set(configs.all_keys()) >= keys
    programs = " ".join(path.read_text() for path in (ROOT / "transformer_jax").glob("**/*.py"))
    for name, alternatives in configs.NAMES_ELSEWHERE.items():
        for target in (target for option in alternatives for target in option):
            if target.startswith("--"):
                assert f'"{target[2:]}"' in programs, target
            else:
                assert target in keys, name


@pytest.mark.parametrize(
    "family, word, suggestion",
    [
        *(
            ("gpt", word, suggestion)
            for word, suggestion in {
                "optimizer.lr": "optimizer.learning_rate (the peak of the schedule)",
                "model.n_layers": "model.num_layers",
                "train.batch_size": "train.batch",
                "model.hidden_size": "model.d_model",
                "n_head": "model.num_heads",
                "n_layer": "model.num_layers",
                "model.n_embd": "model.d_model",
                "model.num_attention_heads": "model.num_heads",
                "intermediate_size": "model.d_ff",
                "model.block_size": "task.length (tokens of a row) and model.max_length",
                "seq_len": "task.length",
                "max_seq_length": "task.length",
                "train.learning_rate": "optimizer.learning_rate",
                "warmup": "optimizer.warmup_steps",
                "max_steps": "train.num_steps (updates in the whole run)",
                "total_steps": "train.num_steps",
                "train.epochs": "train.num_steps",
                "per_device_train_batch_size": "train.batch",
                "grad_accum": "train.accumulation",
                "gradient_accumulation_steps": "train.accumulation",
                "save_steps": "checkpoint.every",
                "eval_steps": "train.eval_every",
                "logging_steps": "train.log_every",
                "wd": "optimizer.weight_decay",
                "train.weight_decay": "optimizer.weight_decay",
                "beta1": "optimizer.b1",
                "adam_beta1": "optimizer.b1",
                "dropout_rate": "model.dropout",
                "ffn_dim": "model.d_ff",
                "vocab": "model.vocab_size",
                "output_dir": "--workdir",
                "fp16": "model.dtype",
                "bf16": "model.dtype",
                "seed": "train.seed",
                "max_grad_norm": "optimizer.clip_norm",
                "n-head": "model.num_heads",
                "Block_Size": "task.length",
            }.items()
        ),
        ("encoder_decoder", "model.n_layers", "model.num_encoder_layers"),
        ("encoder_decoder", "model.num_layers", "model.num_decoder_layers"),
        ("encoder_decoder", "max_seq_length", "task.source_length"),
        ("bert", "task.seq_len", "task.phases"),
        ("bert", "decode.num_beams", "decode.beam"),
    ],
)
def test_names_of_other_codebases_lead_to_ours(family, word, suggestion):
    config = configs.experiment(model={"name": family}, task={"name": FAMILIES[family]})
    with pytest.raises(UserError, match=r"^[^\n]*$") as error:
        configs.set_key(config, word, "1")
    assert f"unknown key config.{word}; did you mean " in str(error.value)
    assert suggestion in str(error.value).partition("did you mean ")[2]


def test_a_key_instead_of_a_section_is_refused(tmp_path):
    with pytest.raises(UserError, match="no section 'lr'; did you mean optimizer.learning_rate"):
        configs.experiment(model={"name": "gpt"}, task={"name": "causal_lm"}, lr=1)
    with pytest.raises(UserError, match="no section 'trian'; did you mean train?"):
        configs.experiment(model={"name": "gpt"}, task={"name": "causal_lm"}, trian={})


GPT, WMT = ("--config=configs/gpt/quickstart.py",), ("--config=configs/wmt/quickstart.py",)


@pytest.mark.parametrize(
    "program, arguments, flag, suggestion",
    [
        ("train_gpt", GPT, "--lr=3e-4", "--config.optimizer.learning_rate?"),
        ("train_gpt", GPT, "--batch_size=8", "--config.train.batch?"),
        ("train_gpt", GPT, "--learning_rate=1", "--config.optimizer.learning_rate?"),
        ("train_gpt", GPT, "--warmpu_steps=1", "--config.optimizer.warmup_steps?"),
        ("train_gpt", GPT, "--batch=1", "--config.train.batch or --config.decode.batch?"),
        ("train_gpt", GPT, "--seed=1", "--config.train.seed?"),
        ("train_gpt", GPT, "--output_dir=x", "--workdir?"),
        ("train_gpt", GPT, "--wrkdir=x", "--workdir?"),
        (
            "train_wmt",
            WMT,
            "--n_layers=2",
            "--config.model.num_encoder_layers and --config.model.num_decoder_layers?",
        ),
        ("train", (), "--n_layers=2", "--config.model.num_layers?"),
        ("translate", ("--workdir=x",), "--num_beams=2", "--config.decode.beam?"),
        ("translate", ("--workdir=x",), "--batch_size=2", "--config.decode.batch?"),
        ("generate", ("--workdir=x",), "--max_new_tokens=2", "--max_tokens?"),
    ],
)
def test_a_key_given_as_a_flag_leads_to_its_flag(program, arguments, flag, suggestion):
    name = flag.partition("=")[0]
    refused(here(program, *arguments, flag), f"unknown flag {name}; did you mean {suggestion}")


def test_an_unknown_flag_without_similar_names_gets_no_suggestion():
    done = here("train_gpt", *GPT, "--zzz=1")
    refused(done, "unknown flag --zzz")
    assert "did you mean" not in done.stderr


@pytest.mark.parametrize("model, task", PAIRS)
def test_every_key_has_a_meaning(model, task):
    without = [key for key in configs.schema(model, task) if not configs.meaning(key, model, task)]
    assert not without, f"no comment behind the field of {', '.join(without)}"


def test_the_listing_of_keys():
    config = configs.load(str(ROOT / "configs/finetune/glue.py:stsb"))
    lines = cli.lines(config, "configs/finetune/glue.py:stsb")
    assert (
        "train.batch=32 (a whole number; default 64): rows in the batch of an update, over all "
        "hosts and microbatches" in lines
    )
    for begins in (
        "task.length=128 (a whole number): tokens of a row",
        "task.regression=true (true or false; default false): labels are",
        "model.head_dim=none (a whole number or none): width of a head",
        "optimizer.warmup_steps=0.1 (a whole number of updates or a fraction of the run; def",
    ):
        assert any(line.startswith(begins) for line in lines), begins
    keys = [line.partition("=")[0] for line in lines[2:] if line]
    assert keys == list(configs.schema("bert", "classification"))


@pytest.mark.parametrize(
    "program, config",
    [
        ("train", "gpt/quickstart.py"),
        ("train", "finetune/glue.py:sst2"),
        ("train_gpt", "gpt/quickstart.py"),
        ("train_bert", "bert/quickstart.py"),
        ("train_wmt", "wmt/quickstart.py"),
        ("finetune", "finetune/glue.py:sst2"),
    ],
)
def test_help_config_needs_no_workdir(program, config):
    done = here(program, f"--config=configs/{config}", "--config.train.batch=7", "--help_config")
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert "\ntrain.batch=7 (a whole number; default 64): rows in the batch of" in done.stdout
    assert "\nmodel.d_model=" in done.stdout and "\ntask.name=" in done.stdout


def test_help_config_needs_a_config():
    refused(here("train", "--help_config"), "--help_config needs --config=FILE")


def test_importing_the_program_does_not_hide_the_function(monkeypatch):
    from transformer_jax.runs import train as runs_train

    importlib.import_module("transformer_jax.train")
    monkeypatch.setattr(runs_train, "train", lambda *arguments: arguments)
    assert transformer_jax.train("config", "folder") == ("config", "folder")


def test_train_takes_any_task(tmp_path):
    refused(
        here("train", "--config=configs/finetune/glue.py:sst2", f"--workdir={tmp_path}/run"),
        "config.init_from is missing",
    )
    gpt = (*GPT, f"--workdir={tmp_path}/run")
    refused(here("train", *gpt, "--config.data.corpus="), "config.data")
    refused(here("train", *gpt, "--seeds=2", "--profile=1:2"), "without --seeds")
    refused(here("train", *gpt, "--together"), "give the number of seeds too")
