"""Tiny pre-trained runs, and examples of each fine-tuning task that a tiny model can learn."""

import json

from tests.conftest import build_bert, build_config, build_gpt
from tests.tasks.test_bidirectional_lm import build as build_elmo
from tests.training import recurrent
from transformer_jax import config as configs
from transformer_jax.runs import spec
from transformer_jax.runs.spec import make_task, resolve
from transformer_jax.training.step import init_params

ANIMALS, VERBS = ("cat", "dog"), ("sat", "ran")


def pretrained(folder, family, **overrides):
    """Returns the workdir of a run at step 0. Most tests do not need trained parameters."""
    if family == "lstm":
        sizes = dict(model__d_model=32, model__dropout=0.0)
        config = recurrent.build(folder / family, **sizes, **overrides)
    elif family == "awd_lstm":
        none = dict.fromkeys(("input_dropout", "layer_dropout", "output_dropout"), 0.0)
        none |= dict(word_dropout=0.0, weight_dropout=0.0)
        model = dict(name="awd_lstm", vocab_size=300, d_model=16, d_hidden=24, **none)
        config = recurrent.build(folder / family, model, **overrides)
    elif family == "xlnet":
        config = _build_xlnet(folder / family)
    elif family == "elmo":
        config = build_elmo(folder / family, **overrides)
    elif family == "recurrent_seq2seq":
        config = _build_recurrent_seq2seq(folder / family, **overrides)
    else:
        build = {
            "bert": build_bert,
            "gpt": build_gpt,
            "bart": _build_bart,
            "encoder_decoder": build_config,
        }[family]
        none = dict(model__dropout=0.0, model__attention_dropout=0.0)
        config = build(folder / family, **none, **overrides)
    task = make_task(config)
    workdir = folder / f"{family}_run"
    workdir.mkdir(parents=True)
    spec.create(workdir, task, init_params(task))
    return workdir


def _build_xlnet(folder):
    """Returns a tiny XLNet's config, with the text of the tiny BERT."""
    sizes = dict(vocab_size=80, d_model=32, num_layers=2, num_heads=2, dropout=0.0, init_std=0.1)
    return configs.experiment(
        model=dict(name="xlnet", **sizes),
        task=dict(name="permuted_lm", length=32),
        data=build_bert(folder).data.to_dict(),
    )


def _build_recurrent_seq2seq(folder, **overrides):
    """Returns a tiny recurrent encoder-decoder's config, with the texts of the tiny translation."""
    config = configs.experiment(
        model=dict(name="recurrent_seq2seq", vocab_size=80, d_model=32, max_length=64),
        task=dict(name="translation", source_length=32, target_length=32, bleu_lines=0),
        data=build_config(folder).data.to_dict(),
    )
    for key, value in overrides.items():
        configs.set_key(config, key.replace("__", "."), value)
    return config


def _build_bart(folder, **overrides):
    """Returns a tiny BART's config, with the text of the tiny GPT."""
    data = build_gpt(folder).data
    data.tokenizer = "roberta_bpe"
    sizes = dict(vocab_size=300, d_model=32, d_ff=64, num_heads=2, max_length=64)
    layers = dict(num_encoder_layers=2, num_decoder_layers=2)
    config = configs.experiment(
        model=dict(name="bart", **sizes, **layers),
        task=dict(name="denoising", source_length=32, target_length=32),
        data=data.to_dict(),
    )
    for key, value in overrides.items():
        configs.set_key(config, key.replace("__", "."), value)
    return config


def _sentence(i):
    return f"the {ANIMALS[i % 2]} {VERBS[i // 2 % 2]} on the mat"


def _tagged(i):
    return "\n".join(
        f"{word}\t{'B-PET' if word in ANIMALS else 'O'}" for word in _sentence(i).split()
    )


def _question(i):
    context = f"{_sentence(i)}. a {ANIMALS[(i + 1) % 2]} ran to it."
    return {
        "context": context,
        "qas": [
            {
                "id": str(i),
                "question": "who ran to it?",
                "answers": [
                    {"text": ANIMALS[(i + 1) % 2], "answer_start": context.rindex("a ") + 2}
                ],
            }
        ],
    }


# kind of task: (ending of its files, function of n to a file with n examples, keys of the task)
FILES = {
    "classification": (
        "tsv",
        lambda n: "".join(f"{ANIMALS[i % 2]}\t{_sentence(i)}\n" for i in range(n)),
        dict(text="2", label="1"),
    ),
    "pairs": (
        "jsonl",
        lambda n: "".join(
            json.dumps(
                {"a": _sentence(i), "b": _sentence(i + i // 4), "same": int(i // 4 % 4 == 0)}
            )
            + "\n"
            for i in range(n)
        ),
        dict(text="a", pair="b", label="same"),
    ),
    "regression": (
        "csv",
        lambda n: "text,score\n" + "".join(f"{_sentence(i)},{i % 2}.5\n" for i in range(n)),
        dict(text="text", label="score", regression=True),
    ),
    "tagging": ("conll", lambda n: "\n\n".join(map(_tagged, range(n))) + "\n", {}),
    "span": (
        "json",
        lambda n: json.dumps({"data": [{"paragraphs": [_question(i) for i in range(n)]}]}),
        dict(stride=8, max_question=8, max_answer=4),
    ),
    "choice": (
        "tsv",
        lambda n: "".join(
            f"a man ran\tto the {ANIMALS[i % 2]}\tto the {ANIMALS[(i + 1) % 2]}\t{i % 2}\n"
            for i in range(n)
        ),
        dict(choices=("2", "3"), label="4"),
    ),
}
NAMES = {"pairs": "classification", "regression": "classification"}
LINES = {  # a line to predict
    "classification": "the cat sat",
    "pairs": "the cat sat\tthe dog ran",
    "regression": "the cat sat",
    "tagging": "the cat sat",
    "span": "who ran?\tthe cat ran. a dog sat.",
    "choice": "a cat ran\tto the cat\tto the dog",
}


def build(folder, kind, workdir, **overrides):
    """Returns the config that fine-tunes `workdir` for a kind of task, with files in `folder`."""
    ending, content, keys = FILES[kind]
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 48), ("valid", 12)):
        (folder / f"{name}.{ending}").write_text(content(count))
    config = configs.experiment(
        model=dict(name="bert"),
        task=dict(name=NAMES.get(kind, kind), length=32, head_dropout=0.0, **keys),
        init_from=str(workdir),
        data=dict(train_files=f"{folder}/train.{ending}", valid_files=f"{folder}/valid.{ending}"),
        train=dict(num_steps=60, batch=8, log_every=30, eval_every=60),
        checkpoint=dict(every=60, keep=1, best_metric=""),
        optimizer=dict(learning_rate=5e-3, schedule="linear", warmup_steps=6),
        decode=dict(batch=5),
    )
    for key, value in overrides.items():
        configs.set_key(config, key.replace("__", "."), value)
    configs.validate(config)
    return config


def task_of(folder, kind, workdir, **overrides):
    """Returns the task of the config of `build`."""
    return make_task(resolve(build(folder, kind, workdir, **overrides), folder / "none").config)
