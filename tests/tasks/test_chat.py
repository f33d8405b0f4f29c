"""Supervised fine-tuning on conversations, and talking to the result."""

import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import examples
from tests.conftest import build_gpt
from tests.data.test_chat_tokenizer import ASSISTANT, STOP, SYSTEM, USER, A, B, message
from tests.examples.chat import conversation
from tests.programs import call, refused
from tests.tasks.conftest import trained
from transformer_jax import config as configs
from transformer_jax import convert
from transformer_jax.cli import conversation as terminal
from transformer_jax.cli.conversation import Streamed
from transformer_jax.config import UserError
from transformer_jax.contracts.task import Context
from transformer_jax.data import tokenizers
from transformer_jax.data.tokenizers.chat import SPECIAL_TOKENS
from transformer_jax.data.tokenizers.words import Characters
from transformer_jax.inference import causal
from transformer_jax.runs import spec
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task, resolve
from transformer_jax.training.step import Program, init_params

QUESTION = [message("user", "Where is the cat?")]


def build(folder, **overrides):
    """Returns a tiny config of conversations; overrides are written model__dropout=0.1."""
    other = build_gpt(folder)
    model = other.model.to_dict() | dict(dropout=0.0, attention_dropout=0.0)
    config = configs.experiment(model=model, task=dict(name="chat", length=48))
    for section in ("data", "train", "optimizer", "checkpoint", "decode"):
        config[section] = other[section]
    files = examples.write(config, folder / "chats")
    for key, value in (files | overrides).items():
        configs.set_key(config, key.replace("__", "."), value)
    configs.validate(config)
    return config


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat")
    return trained(build(folder), folder)


@pytest.fixture(scope="module")
def batch(chats):
    batch = chats.task.rows().train.batch(0, range(2))
    assert batch["segment_ids"].max() > 1 and batch.keys() == chats.task.batch_spec(0).keys()
    return batch


def loss(chats, batch):
    of_batch = jax.jit(lambda batch: chats.task.loss(chats.params, batch, Context()).terms["loss"])
    return float(of_batch(batch))


def test_it_learns_the_replies_and_their_end(chats):
    reply = chats.task.reply(chats.params, QUESTION, temperature=0)
    assert (reply.text, reply.finished) == ("on the mat", "end")
    system = [message("system", "Be brief.")]
    asked = [
        *system,
        *QUESTION,
        message("assistant", "on the mat"),
        message("user", "What did it do?"),
    ]
    reply = chats.task.reply(chats.params, asked, temperature=0)
    assert reply.finished == "end"
    scores = chats.task.evaluate(chats.params, "valid")
    assert scores["loss"] == pytest.approx(chats.scores["valid/loss"], rel=1e-5)
    assert scores["perplexity"] == pytest.approx(np.exp(scores["loss"]))
    assert scores["conversations"] == 40 and scores["loss"] < 1
    tokenizer, count = chats.task.tokenizer, 0
    for number in range(40):
        value = conversation(number)
        messages = value.get("messages") or [
            message("user", value["prompt"]),
            message("assistant", value["completion"]),
        ]
        count += int(tokenizer.render(messages).is_completion.sum())
    assert scores["tokens"] == count


def test_only_the_tokens_of_the_assistant_count(chats, batch):
    weighed = chats.task.weights(batch)["loss"]
    assert weighed == batch["weights"].sum() < (batch["segment_ids"] > 0).sum()
    others = dict(batch, labels=np.where(batch["weights"] > 0, batch["labels"], 7))
    assert loss(chats, others) == loss(chats, batch)
    other = dict(batch, labels=np.where(batch["weights"] > 0, 7, batch["labels"]))
    assert loss(chats, other) != loss(chats, batch)
    ends = (batch["labels"] == chats.task.tokenizer.end_id) & (batch["weights"] > 0)
    assert ends.sum() >= 2  # the model learns to stop


def test_packed_conversations_have_the_loss_of_each_alone(chats, batch):
    apply = jax.jit(lambda tokens: chats.task.model.apply({"params": chats.params}, tokens))
    expected = 0.0
    for row in range(2):
        for segment in range(1, batch["segment_ids"][row].max() + 1):
            inside = batch["segment_ids"][row] == segment
            tokens = np.zeros((1, 48), np.int32)
            tokens[0, : inside.sum()] = batch["tokens"][row][inside]
            log_p = np.asarray(jax.nn.log_softmax(apply(tokens)))[0, : inside.sum()]
            of_labels = np.take_along_axis(log_p, batch["labels"][row][inside][:, None], 1)[:, 0]
            expected -= (of_labels * batch["weights"][row][inside]).sum()
    assert loss(chats, batch) == pytest.approx(expected, rel=1e-4)


def test_other_conversations_of_a_row_change_no_state(chats, batch):
    @jax.jit
    def states(batch):
        return chats.task.states(chats.params, batch, Context())[0]

    first = batch["segment_ids"] == 1
    changed = dict(batch, tokens=np.where(first, (batch["tokens"] + 5) % 250, batch["tokens"]))
    before, after = states(batch), states(changed)
    others = batch["segment_ids"] > 1
    np.testing.assert_array_equal(before[others], after[others])
    assert not np.array_equal(before[first], after[first])


@pytest.mark.full
def test_a_run_begins_with_a_language_model_whose_vocabulary_grows(tmp_path):
    pretraining = build_gpt(tmp_path / "text")
    size = make_task(pretraining).tokenizer.vocab_size
    configs.set_key(pretraining, "model.vocab_size", size)
    gpt, run = tmp_path / "gpt", tmp_path / "run"
    task = make_task(pretraining)
    earlier = init_params(task)
    gpt.mkdir()
    spec.create(gpt, task, earlier)

    def resolved(folder, init_from, **overrides):
        config = build(tmp_path / "chat", init_from=str(init_from), **overrides)
        with config.ignore_type():
            config.model = configs.experiment(model={"name": "gpt"}, task={"name": "chat"}).model
        return resolve(config, tmp_path / folder)

    chat = resolved("run", gpt)
    assert chat.config.model.vocab_size == size + 4
    task = chat.task()
    assert task.tokenizer.base.vocab_size == size and task.tokenizer.end_id == size + 3
    initial = init_params(task)
    program = Program.of(chat.config, task, jax.devices()[:1])
    params = chat.origin.params(chat.config, program, initial)
    table, old, new = (each["token_embed"]["embedding"] for each in (params, earlier, initial))
    np.testing.assert_array_equal(table, np.concatenate([old, new[size:]]))
    # A run that begins with this one, or continues it, adds no further tokens.
    run.mkdir()
    spec.create(run, task, params)
    assert resolved("next", run).config.model.vocab_size == size + 4
    assert resolved("run", gpt).config.model.vocab_size == size + 4
    with pytest.raises(UserError, match="config.task.special_tokens=.*config.init_from has "):
        resolved("next", run, task__special_tokens=("<s>", "<u>", "<a>", "<e>"))


@pytest.mark.parametrize(
    "overrides, error",
    [
        (dict(task__length=65), "config.task.length=65: must be from 2 to config.model.max_length"),
        (
            dict(task__special_tokens=("<a>",)),
            "config.task.special_tokens=.*must be four different texts",
        ),
        (dict(model__vocab_size=20, data__tokenizer="characters"), "config.model.vocab_size=16"),
    ],
)
def test_wrong_values_are_refused(tmp_path, overrides, error):
    with pytest.raises(UserError, match=error):
        _ = make_task(build(tmp_path, **overrides)).tokenizer


def test_an_encoder_is_refused(tmp_path):
    config = configs.experiment(model={"name": "bert"}, task={"name": "chat", "length": 32})
    with pytest.raises(UserError, match="config.model.name='bert': .* is for causal models"):
        make_task(config)


def test_it_is_written_as_a_language_model(chats, tmp_path):
    convert.to_hf(chats.workdir, tmp_path / "hf")
    content = json.loads((tmp_path / "hf" / "config.json").read_text())
    tokenizer = chats.task.tokenizer
    assert content["architectures"] == ["GPT2LMHeadModel"]
    assert content["eos_token_id"] == [tokenizer.eos_id, tokenizer.end_id]
    convert.from_hf(tmp_path / "hf", tmp_path / "back")
    task, params = open_run(tmp_path / "back")
    np.testing.assert_array_equal(
        params["token_embed"]["embedding"], chats.params["token_embed"]["embedding"]
    )
    texts = ["Where is the cat?"]
    assert task.tokenizer.encode(texts) == tokenizer.encode(texts)


# talking


def test_the_oldest_turns_make_room_for_the_reply():
    letters = tokenizers.with_special_tokens(Characters.train(["ab"], 8), SPECIAL_TOKENS)
    messages = [
        message("system", "a"),
        message("user", "aa"),
        message("assistant", "bb"),
        message("user", "b"),
    ]

    def prompt(window, messages=messages):
        model = types.SimpleNamespace(window=window, max_length=window)
        return causal.prompt(letters, model, 5, messages)

    system, first = [SYSTEM, A, STOP], [USER, A, A, STOP, ASSISTANT, B, B, STOP]
    last = [USER, B, STOP, ASSISTANT]
    assert prompt(20) == system + first + last
    assert prompt(19) == system + last == prompt(12)
    assert prompt(19, messages[1:]) == first + last and prompt(9, messages[1:]) == last
    with pytest.raises(UserError, match="the last message: its prompt of 7 tokens and a reply"):
        prompt(11)


@pytest.mark.full
def test_messages_without_a_reply(chats, gpt):
    for messages, error in (
        ([], "messages: 'messages' must be a list of at least one"),
        ([message("tool", "a")], "messages: message 1: role 'tool' must be one of"),
        ([*QUESTION, message("assistant", "a")], "the last one must be of the user"),
        ([message("user", "the cat " * 40)], "config.model.max_length=64; write less"),
    ):
        with pytest.raises(UserError, match=error):
            chats.task.reply(chats.params, messages)
    with pytest.raises(UserError, match="config.task.name='causal_lm': this run has neither"):
        gpt.task.reply(gpt.params, QUESTION)


@pytest.mark.full
def test_a_streamed_reply_is_the_whole_one(chats, capsys):
    task = chats.task
    params = jax.tree.map(jnp.asarray, init_params(task))  # long replies
    settings = dict(max_tokens=30, temperature=1.0, seed=3)
    whole = task.reply(params, QUESTION, **settings)
    assert whole.tokens > 16  # several parts
    parts = []
    show = Streamed(())

    def watch(texts):
        parts.append(texts[0])
        show(texts)

    streamed = task.reply(params, QUESTION, watch=watch, **settings)
    show.end(streamed.text)
    assert streamed == whole and capsys.readouterr().out == whole.text + "\n"
    assert len(parts) > 2 and len(parts[0]) < len(whole.text)


def test_a_text_that_may_be_a_stop_string_is_held_back(capsys):
    show = Streamed(["END"], before="> ")
    for text in ("a", "aE", "aEN", "aENa"):
        show([text])
    assert capsys.readouterr().out == "> aENa"
    show.end("aENab")
    assert capsys.readouterr().out == "b\n"


def test_in_a_terminal(chats, capsys, monkeypatch):
    lines = iter(["Where is the cat?", " ", "the cat " * 40, "Where is the dog?"])

    def typed(prompt):
        print(prompt, end="")
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", typed)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    # Where the output goes to a file, the prompt would be a part of it.
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    asked = []

    def reply(params, messages, **settings):
        asked.append([each["role"] for each in messages])
        return chats.task.reply(params, messages, **settings)

    task = types.SimpleNamespace(reply=reply, chat_tokenizer=chats.task.chat_tokenizer)
    settings = dict(max_tokens=None, stop=[], seed=0, temperature=0)
    terminal.hold(task, chats.params, "Be brief.", settings)
    out, err = capsys.readouterr()
    assert out == "> on the mat\n> > > on the mat\n> " and err.endswith("\n")
    assert "Ctrl-D ends it" in err and "error: the last message" in err
    # A message that is too long is not remembered.
    assert asked == [
        ["system", "user"],
        ["system", "user", "assistant", "user"],
        ["system", "user", "assistant", "user"],
    ]


def test_through_pipes(chats):
    chat = ["generate", f"--workdir={chats.workdir}", "--chat", "--temperature=0"]
    done = call(*chat, "--system=Be brief.", text="Where is the cat?\n\nWhere is the dog?\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "on the mat\n\non the mat\n"
    long = call(*chat, text="Where is the cat?\n" + "the cat " * 40 + "\n")
    refused(long, "stdin:2: the last message: its prompt of")
    assert long.stdout == "on the mat\n"


def test_prompts_are_completed_apart_from_each_other(chats):
    """Each is a conversation of its own, or a text: a message of the user."""
    prompts = ["What did it do?", QUESTION, [message("system", "Be brief."), *QUESTION]]
    settings = dict(max_tokens=12, temperature=0)
    replies = list(chats.task.replies(chats.params, prompts, **settings))
    assert replies == [chats.task.reply(chats.params, each, **settings) for each in prompts]
    assert replies[1].text == "on the mat"
    with pytest.raises(UserError, match="prompt 2: messages: message 1: 'content' must be a text"):
        list(chats.task.replies(chats.params, ["a", " "], **settings))
    with pytest.raises(TypeError, match="expected a list of texts, got one text"):
        chats.task.replies(chats.params, "a")


@pytest.mark.full
def test_prompts_on_the_command_line(chats):
    chat = ["generate", f"--workdir={chats.workdir}", "--chat"]
    flags = ["--temperature=0", "--num_samples=2", "--system=Be brief.", "--prompts=-"]
    done = call(*chat, *flags, text="Where is the cat?\n")
    assert done.returncode == 0, done.stderr
    line = {"prompt": "Where is the cat?", "text": "on the mat", "finished": "end"}
    replies = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(replies) == 2 and all(reply.items() >= line.items() for reply in replies)
    one = call(*chat, "--temperature=0", "--prompt=Where is the cat?")
    assert one.stdout == "on the mat\n", one.stderr
    plain = call("generate", f"--workdir={chats.workdir}", "--prompt=Where", "--max_tokens=2")
    assert plain.stdout.startswith("Where") and "--chat replies" in plain.stderr


@pytest.mark.full
def test_flags_that_do_not_go_together(chats, gpt):
    chat = ["generate", f"--workdir={chats.workdir}"]
    refused(call(*chat, "--system=a"), "--system: only with --chat")
    refused(call(*chat, "--chat", "--beam=2"), "--beam and --chat: a reply has no --beam")
    refusal = call(*chat, "--chat", "--num_samples=2")
    refused(refusal, "--num_samples and --chat without --prompts: a conversation has no")
    other = call("generate", f"--workdir={gpt.workdir}", "--chat", text="a\n")
    refused(other, "this run has neither special tokens for conversations")


@pytest.mark.full
def test_a_wrong_file_leaves_no_run(tmp_path):
    (tmp_path / "bad.jsonl").write_text(json.dumps({"messages": []}) + "\n")
    done = call(
        "train",
        "--config=configs/chat/quickstart.py",
        f"--workdir={tmp_path}/run",
        "--config.data.corpus=",
        f"--config.data.train_files={tmp_path}/bad.jsonl",
        "--config.model.num_layers=1",
        f"--config.data.cache={tmp_path}/cache",
    )
    refused(done, "bad.jsonl:1: 'messages' must be a list of at least one message")
    assert not (tmp_path / "run" / "config.json").exists()
