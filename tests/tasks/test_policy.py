"""Completions within a step, their log-probabilities and rewards, and what a first update sees."""

import copy
import json
import pathlib
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from tests.jitted import Jitted, jitted
from tests.tasks import policies
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.contracts.task import Context
from transformer_jax.data import chat_rows
from transformer_jax.data.sources.chat import Prompts, open_conversations
from transformer_jax.data.tokenizers.chat import ChatTokenizer
from transformer_jax.data.tokenizers.words import Characters
from transformer_jax.inference.generation import Sampling
from transformer_jax.objectives.rollouts import Completions
from transformer_jax.runs.spec import resolve
from transformer_jax.tasks.rl.grammar_reward import GrammarReward
from transformer_jax.training import step, trainer
from transformer_jax.training.step import Program

ROOT = pathlib.Path(__file__).parent.parent.parent
REWARD = tuple(dict(name="gpt", vocab_size=300, d_model=8, num_layers=1, num_heads=2).items())


def build(folder, gpt, name, **overrides):
    """Returns the task of a policy that begins with a trained language model, and its parameters.

    The parameters of the reward model are random.
    """
    keys = dict(name=name, reward_model=REWARD)
    config = policies.build(folder, gpt.workdir, "", keys, **overrides)
    task = resolve(config).task()
    params = {**step.init_params(task), **gpt.params, "reference": gpt.params}
    return task, params


@pytest.fixture(scope="module")
def ppo(gpt, tmp_path_factory):
    """Returns a task, its parameters, and the experience of a batch."""
    task, params = build(tmp_path_factory.mktemp("ppo"), gpt, "ppo", task__temperature=0.7)
    batch = task.rows().train.batch(0, range(8))

    @jax.jit
    def experience(params, batch):
        return task.experience(params, batch, Context(jax.random.key(1), memory=jnp.float32(0.2)))

    return task, params, batch, *jax.device_get(experience(params, batch))


def test_earlier_names_warn(ppo):
    from transformer_jax.objectives import rollouts

    with pytest.warns(DeprecationWarning, match="rollouts.Answers is now Completions"):
        assert rollouts.Answers is Completions
    with pytest.warns(DeprecationWarning, match="PPO.answered is now rewarded_completions"):
        assert ppo[0].answered == ppo[0].rewarded_completions


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_log_probs_equal_those_at_drawing_bit_for_bit(name, gpt, tmp_path):
    """They do so in parts as in the whole batch, and differ without the key by rounding."""
    keys = dict(task__temperature=0.7, task__minibatches=2)
    found = {}
    for invariant in (True, False):
        keys["task__batch_invariant"] = invariant
        task, params = build(tmp_path / str(invariant), gpt, name, **keys)
        batch = task.rows().train.batch(0, range(8))

        @jax.jit
        def experience(params, batch, task=task):
            memory = jnp.float32(0.2)
            rows, _ = task.experience(params, batch, Context(jax.random.key(1), memory=memory))
            half = {name: x[: len(x) // 2] for name, x in rows.items()}
            gradients = jax.grad(lambda p: task.loss(p, half, Context()).terms["policy"])(params)
            return rows, task.policy_log_probs(params, half), task.measures(rows), gradients

        found[invariant] = jax.device_get(experience(params, batch))
    rows, again, measured, gradients = found[True]
    assert measured["mismatch"][0] == 0 and np.abs(rows["drawn_log_probs"]).max() > 1
    np.testing.assert_array_equal(rows["drawn_log_probs"], rows["old_log_probs"])
    np.testing.assert_array_equal(rows["drawn_log_probs"][: len(again)], again)
    others, _, by_rounding, others_gradients = found[False]
    np.testing.assert_array_equal(rows["ids"], others["ids"])
    assert 0 < by_rounding["mismatch"][0] < 1e-4
    own = {name: tree for name, tree in gradients.items() if name not in task.other_runs}
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-4),
        own,
        {name: others_gradients[name] for name in own},
    )


def completions_of(experience, task):
    """Returns the tokens of the completions, and which positions have one."""

    @jax.jit
    def read(completions):
        return completions.tokens(task.max_tokens), completions.filled(task.max_tokens)

    return jax.device_get(read(Completions.of(experience)))


@pytest.mark.full
def test_completions_are_those_of_generate_and_their_log_probs_those_of_the_decoder(ppo):
    """Each draw has its own key, and the log-probabilities are those of the temperature."""
    task, params, batch, experience, _ = ppo
    completions = Completions.of(experience)
    tokens, filled = completions_of(experience, task)
    how = Sampling(temperature=0.7)
    model = Jitted(task.model.limited_to(task.tokenizer))
    own = model.for_decoding(
        {k: v for k, v in params.items() if k not in ("reference", "reward", "value")}
    )
    lengths = batch["prompt_lengths"]

    @jax.jit
    def draw(logits, positions):
        rows = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(1), jnp.arange(8))
        drawn = how.draw(logits, None, jax.vmap(jax.random.fold_in)(rows, positions))
        log_probs = jax.nn.log_softmax(logits / 0.7)
        return drawn, jnp.take_along_axis(log_probs, drawn[:, None], 1)[:, 0]

    logits, decoding = model.begin(own, batch["prompts"], lengths, slots=task.length)
    for position in range(task.max_tokens):
        drawn, of_drawn = map(np.asarray, draw(logits, lengths + position))
        exists = filled[:, position]
        np.testing.assert_array_equal(drawn[exists], tokens[exists, position])
        of_forward = experience["old_log_probs"][exists, position]
        np.testing.assert_allclose(of_forward, of_drawn[exists], atol=1e-4)
        logits, decoding = model.step(own, decoding, drawn[:, None])
        logits = np.asarray(logits)[:, 0]
    for row in range(8):
        ids = np.array(completions.ids[row, : completions.lengths[row]])
        end = ids[-1] == task.tokenizer.eos_id
        assert (
            end == completions.ended[row]
            and not completions.ids[row, completions.lengths[row] :].any()
        )
        np.testing.assert_array_equal(ids[: lengths[row]], batch["prompts"][row, : lengths[row]])
    assert completions.ended.any() and not completions.ended.all()


def test_completions_are_drawn_and_scored_over_the_tokens_of_the_tokenizer(ppo):
    """As in a model whose vocabulary is larger than its tokenizer, here by most of its ids."""
    task, params, batch, *_ = ppo
    few, count = copy.copy(task), 100
    vars(few)["tokenizer"] = types.SimpleNamespace(vocab_size=count)

    @jax.jit
    def sampled(params, batch):
        written = few.written(params, batch, jax.random.key(1))
        own = {k: v for k, v in params.items() if k not in ("reference", "reward", "value")}
        logits = task.model.apply({"params": own}, written["ids"])
        return written, few.policy_log_probs(params, written), logits

    written, log_probs, logits = jax.device_get(sampled(params, batch))
    tokens, filled = completions_of(written, task)
    assert filled.any() and tokens[filled].max() < count
    expected = scipy.special.log_softmax(logits[..., :count] / 0.7, axis=-1)
    for row, column in zip(*np.nonzero(filled)):
        position = written["begins"][row] + column - 1
        of_token = expected[row, position, tokens[row, column]]
        assert log_probs[row, column] == pytest.approx(of_token, abs=1e-3)


def test_an_evaluation_completes_the_held_out_prompts(ppo, capsys):
    """The policy is still the reference, so that its divergence from it is 0."""
    task, params, *_ = ppo
    scores = task.evaluate(params, "valid")
    assert scores["prompts"] == 6 and 0 < scores["length"] <= task.max_tokens
    assert scores["kl"] == pytest.approx(0, abs=1e-5) and np.isfinite(scores["reward"])
    assert task.evaluate(params, "valid") == scores
    prompts = re.findall("a completion: '(.*?)' -> ", capsys.readouterr().err)
    assert prompts and {*prompts} <= {*policies.PROMPTS}


@pytest.mark.full
def test_the_first_experience_has_no_divergence_and_rewards_at_the_last_tokens(ppo):
    task, params, _, experience, coefficient = ppo
    np.testing.assert_array_equal(experience["old_log_probs"], experience["reference_log_probs"])
    assert float(coefficient) == pytest.approx(0.2 * (1 - 0.2 * 8 / task.horizon))
    _, filled = completions_of(experience, task)
    gains = experience["advantages"][filled]
    assert abs(gains.mean()) < 1e-5 and gains.std() == pytest.approx(1, rel=1e-3)
    task.unfinished_reward = -1.0
    rewards = np.asarray(jitted(task.rewarded)(params, experience))
    assert set(rewards[~experience["ended"]]) == {-1.0}
    task.unfinished_reward = None


@pytest.mark.parametrize("name", ["ppo", pytest.param("grpo", marks=pytest.mark.full)])
def test_the_ratio_of_the_first_minibatch_is_exactly_1(name, gpt, tmp_path):
    """With microbatches, too: each part of the experience has the rounding of the loss."""
    keys = dict(task__epochs=1, task__minibatches=1, train__accumulation=2)
    task, params = build(tmp_path, gpt, name, **keys)
    program = Program.of(task.config, task, jax.devices()[:1])
    state = step.init(task.config, program)
    state = state.replace(params=jax.tree.map(jnp.array, params))
    (batch,) = trainer.stream(task.rows().train.batch, 8, 2, program.batch_sharding, range(1))
    after = jax.device_get(program.train_step(state, batch))
    total, count = after.metrics["change"]
    assert total == 0 and count > 0 and after.metrics["clip_share"][0] == 0
    assert after.metrics["kl"][0] == 0 and after.metrics["grad_norm"][0] > 0


def test_texts_of_pretraining_are_mixed_in(gpt, tmp_path):
    """The gradient has the loss of texts as a language model, times its coefficient."""
    (tmp_path / "texts.txt").write_text("the cat sat on the mat.\n\n" * 40)
    keys = dict(task__text_files=str(tmp_path / "texts.txt"), task__text_length=16)
    task, params = build(tmp_path, gpt, "ppo", **keys, data__cache=str(tmp_path / "cache"))
    batch = task.rows().train.batch(0, range(8))
    assert {k: (v.shape, v.dtype) for k, v in batch.items()} == {
        k: (v.shape, v.dtype) for k, v in task.batch_spec(0).items()
    }

    @jax.jit
    def measured(params, batch):
        context = Context(jax.random.key(0), memory=task.initial_memory())
        experience, _ = task.experience(params, batch, context)
        return task.loss(params, experience, context), task.weights(experience)

    loss, weights = measured(params, batch)
    apply = jitted(task.model.apply)
    hidden = apply({"params": params}, batch["text_tokens"], method="hidden")
    logits = apply({"params": params}, hidden, method="logits")
    log_probs = scipy.special.log_softmax(logits, axis=-1)
    labels = batch["text_labels"][..., None]
    of_labels = np.take_along_axis(log_probs, labels, axis=-1)[..., 0]
    np.testing.assert_allclose(loss.terms["texts"], -of_labels.sum(), rtol=1e-5)
    assert weights["texts"] == batch["text_weights"].sum() == 8 * 16
    assert task.coefficients["texts"] == 27.8


@pytest.mark.full
def test_a_run_is_planned_without_a_tokenizer():
    config = configs.tiny(ROOT / "configs/preferences/ppo.py:imdb")
    task = resolve(config).task()
    program = Program.of(config, task, jax.devices()[:1])
    assert task.end_id == 0 and program.state.memory.shape == ()


def test_prompts_of_files(tmp_path):
    messages = [{"role": "user", "content": "d"}]
    lines = ['{"prompt": "a b", "id": 3}', "", '"c"', json.dumps({"messages": messages})]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    (tmp_path / "prompts.txt").write_text("e f\n\ng\n")
    paths = tuple(str(tmp_path / f"prompts.{ending}") for ending in ("jsonl", "txt"))
    assert list(Prompts(paths)) == ["a b", "c", messages, "e f", "g"]
    for wrong, message in (
        (["3"], "neither a JSON object"),
        ([json.dumps({"a": 1})], "no key 'prompt'"),
    ):
        (tmp_path / "wrong.jsonl").write_text("\n".join(wrong))
        with pytest.raises(UserError, match=f"wrong.jsonl:1: {message}"):
            list(Prompts((str(tmp_path / "wrong.jsonl"),)))


@pytest.mark.parametrize(
    "name, changes, message",
    [
        ("ppo", dict(task__max_tokens=0), "config.task.max_tokens=0: must be at least 1"),
        ("ppo", dict(task__temperature=0.0), "config.task.temperature=0.0: must be above 0"),
        ("ppo", dict(task__minibatches=3), "its 8 completions can't be divided into"),
        ("ppo", dict(task__max_tokens=99), "their sum must be at most 64"),
        ("ppo", dict(task__target_kl=0.0), "config.task.target_kl=0.0: must be above 0"),
        ("ppo", dict(task__decay=1.5), "config.task.decay=1.5: must be from 0 to 1"),
        ("ppo", dict(task__reward_model=()), "config.task.reward is missing"),
        ("ppo", dict(task__reference=""), "config.task.reference is missing"),
        ("grpo", dict(task__group_size=1), "config.task.group_size=1: must be at least 2"),
        ("grpo", dict(task__kl_coefficient=-1.0), "config.task.kl_coefficient=-1.0: must be"),
    ],
)
def test_wrong_keys_are_refused(name, changes, message, gpt, tmp_path):
    with pytest.raises(UserError, match=message):
        build(tmp_path, gpt, name, **changes)


def test_the_reward_of_a_reply_is_its_chrf1_against_the_grammars_translation():
    file = ROOT / "configs/preferences/quickstart.py"
    config = configs.load(str(file), [("data.corpus_size", "8")])
    texts = chat_rows.Contents(open_conversations(config.data, "train"))
    task = object.__new__(GrammarReward)
    task.config, task.prompt_length = config, 40
    task.tokenizer = ChatTokenizer(Characters.train(texts, 200))
    (prompt, reply), *others = task.read("train").answered()
    assert prompt[-1]["content"].startswith("How do you say in German: ")
    assert {messages[0]["role"] for messages, _ in others} == {"system", "user"}
    # Of the last 40 tokens, two are special; the others are characters.
    text = task.tokenizer.decode(task.tokenizer.prompt(prompt)[-40:])
    assert text == prompt[-1]["content"][-38:]
    assert task.reward_of(text, reply) == 1 and task.reward_of(text, "") == 0
    assert 0.1 < task.reward_of(text, reply[: len(reply) // 2]) < 0.9
