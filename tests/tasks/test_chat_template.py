"""Replies and fine-tuning of a converted model in the form of its own chat template."""

import json

import jax
import numpy as np
import pytest

from tests.conversion.checkpoints import copied
from tests.data.chat_templates import SYSTEM, USER, WITHOUT
from tests.examples.chat import conversation
from tests.programs import call
from transformer_jax import config as configs
from transformer_jax import convert
from transformer_jax.config import UserError
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import resolve
from transformer_jax.runs.train import train

# A short form, because the tokenizer of the fixture has hardly more than bytes.
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ message.role[0] + bos_token + message.content + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'a' + bos_token }}{% endif %}"
)


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """The run of a published model with a chat template."""
    folder = tmp_path_factory.mktemp("instruct")
    hf = copied("LlamaForCausalLM", folder / "hf")
    (hf / "chat_template.jinja").write_text(TEMPLATE)
    convert.from_hf(hf, folder / "run")
    return folder / "run"


def messages(number):
    """The messages of a conversation, whose line may have a prompt and a completion instead."""
    line = conversation(number)
    roles = {"prompt": "user", "completion": "assistant"}
    return line.get("messages") or [dict(role=roles[key], content=line[key]) for key in roles]


def settings(run, folder):
    files = {}
    for split in ("train", "valid"):
        lines = [conversation(number) for number in range(12)]
        files[f"{split}_files"] = str(folder / f"{split}.jsonl")
        text = "\n".join(json.dumps(line) for line in lines)
        (folder / f"{split}.jsonl").write_text(text + "\n")
    return configs.experiment(
        model=dict(name="decoder"),
        task=dict(name="chat", length=64, special_tokens=()),
        data=dict(cache=str(folder / "cache"), **files),
        train=dict(batch=2, num_steps=2, log_every=1, eval_every=2),
        init_from=str(run),
        checkpoint=dict(every=2),
    )


def test_it_replies_after_its_own_template(converted):
    task, params = open_run(converted)
    ids = task.chat_tokenizer.prompt([SYSTEM, USER])
    # Drawn by hand: the likeliest next token, until there are three.
    expected = list(ids)
    apply = jax.jit(lambda tokens: task.model.apply({"params": params}, tokens))
    for _ in range(3):
        logits = apply(np.pad(expected, (0, 64 - len(expected)))[None])[0, len(expected) - 1]
        expected.append(int(np.argmax(logits[: task.tokenizer.vocab_size])))
    reply = task.reply(params, [SYSTEM, USER], temperature=0, max_tokens=3)
    written = expected[len(ids) :]
    if task.tokenizer.eos_id in written:
        written = written[: written.index(task.tokenizer.eos_id)]
    assert reply.text == task.tokenizer.decode(written)
    done = call(
        "generate", f"--workdir={converted}", "--chat", "--prompt=Hello", "--temperature=0",
        "--max_tokens=3", "--system=Be brief.",
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.rstrip("\n") == reply.text.rstrip("\n"), done.stderr


def test_it_is_fine_tuned_in_the_form_of_its_template(converted, tmp_path):
    config = settings(converted, tmp_path)
    task = resolve(config).task()
    batch = task.rows().train.batch(0, range(2))
    tokenizer = task.tokenizer
    # Of each row, what has a weight is what the assistant writes.
    for row in range(2):
        labels = batch["labels"][row][batch["weights"][row] > 0].tolist()
        written = [
            [*tokenizer.encode(message["content"]), tokenizer.eos_id]
            for number in range(12)
            for message in messages(number)
            if message["role"] == "assistant"
        ]
        while labels:
            end = next(len(each) for each in written if labels[: len(each)] == each)
            labels = labels[end:]
    scores = train(config, tmp_path / "run")
    assert np.isfinite(scores["valid/loss"])
    tuned, params = open_run(tmp_path / "run")
    assert tuned.model.vocab_size == open_run(converted)[0].model.vocab_size
    assert tuned.chat_tokenizer.prompt(WITHOUT) == tokenizer.prompt(WITHOUT)
    assert tuned.reply(params, [USER], max_tokens=2).tokens


def test_without_a_template_it_is_refused(tmp_path):
    hf = copied("LlamaForCausalLM", tmp_path / "hf")
    convert.from_hf(hf, tmp_path / "run")
    with pytest.raises(UserError, match="has no chat template; leave this key out"):
        resolve(settings(tmp_path / "run", tmp_path)).task().rows()
