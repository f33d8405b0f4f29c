"""Measures of policies on held-out prompts, for benchmarks/preferences.py."""

import dataclasses
import math
import pathlib
import statistics
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

MAX_TOKENS = 48  # of an answer; conversations are shorter
DRAWS = {"decode.batch": 256}


class Answer(NamedTuple):
    prompt: str
    text: str
    ended: bool  # within MAX_TOKENS


class Run(NamedTuple):
    """The task and the parameters of a run."""

    task: Any
    params: Any

    @classmethod
    def of(cls, workdir: pathlib.Path, step: str = "best") -> "Run":
        from transformer_jax.runs.open import open_run

        return cls(*open_run(workdir, step, DRAWS))

    def answers(self, prompts: Sequence[str], seed: int = 0) -> list[Answer]:
        """Returns a drawn answer to each prompt, at temperature 1."""
        drawn = self.task.replies(self.params, prompts, max_tokens=MAX_TOKENS, seed=seed)
        return [answered(prompt, each) for prompt, each in zip(prompts, drawn)]

    def log_probs(self, answers: Sequence[Answer]) -> tuple[list[float], int]:
        """Returns log P(answer | prompt) in nats for each answer, and the number of their tokens.

        An answer is encoded again, and has its end where it ended.
        """
        tokenizer = self.task.tokenizer
        prompts = tokenizer.prompts([[of_user(answer.prompt)] for answer in answers])
        ids = [tokenizer.answer(answer.text)[: None if answer.ended else -1] for answer in answers]
        filled = [(prompt, each) for prompt, each in zip(prompts, ids) if each]
        likelihoods = list(self.task.token_log_likelihoods(self.params, filled))
        return [each.log_prob for each in likelihoods], sum(each.tokens for each in likelihoods)

    def perplexity(self, answers: Sequence[Answer]) -> float:
        log_probs, num_tokens = self.log_probs(answers)
        return math.exp(-sum(log_probs) / num_tokens)


def of_user(text: str) -> dict:
    return {"role": "user", "content": text}


def of_people(conversations: Sequence[dict]) -> list[Answer]:
    """Returns the completions of conversations."""
    return [Answer(each["prompt"], each["completion"], True) for each in conversations]


def answered(prompt: str, drawn) -> Answer:
    """Returns the answer of a Continuation."""
    return Answer(prompt, drawn.text, drawn.finished == "end")


def log_odds(classifier: Run, answers: Sequence[Answer]) -> list[float]:
    """Returns the log-odds that prompt and answer are positive, by a classifier."""
    texts = [" ".join((answer.prompt + answer.text).split()) for answer in answers]
    predictions = classifier.task.predict(classifier.params, texts)
    probabilities = [each.details["probabilities"] for each in predictions]
    return [math.log(each["1"]) - math.log(each["0"]) for each in probabilities]


@dataclasses.dataclass(frozen=True)
class Measures:
    """Measures answers by four runs: the SFT model, the reward model, and two classifiers."""

    sft: Run
    reward: Run
    labeller: Run
    judge: Run
    people: list[Answer]  # of held-out conversations

    @property
    def prompts(self) -> list[str]:
        return [answer.prompt for answer in self.people]

    def of_answers(self, answers: Sequence[Answer]) -> dict:
        """Returns reward, shares judged positive and perplexity under the SFT model."""
        pairs = [(answer.prompt, answer.text) for answer in answers]
        lengths = [len(answer.text.split()) for answer in answers]
        return {
            "reward": statistics.fmean(self.reward.task.score(self.reward.params, pairs)),
            "positive": share(log_odds(self.judge, answers)),
            "labelled_positive": share(log_odds(self.labeller, answers)),
            "perplexity": self.sft.perplexity(answers),
            "words": statistics.fmean(lengths),
            "ended": statistics.fmean(answer.ended for answer in answers),
        }

    def of_policy(self, policy: Run, seed: int) -> tuple[dict, list[Answer]]:
        """Returns the measures of a policy, and its answers to the held-out prompts.

        The divergence is the mean over the answers of log P_policy - log P_SFT, in nats a text.
        """
        answers = policy.answers(self.prompts, seed)
        of_policy, _ = policy.log_probs(answers)
        of_sft, _ = self.sft.log_probs(answers)
        ratios = [a - b for a, b in zip(of_policy, of_sft)]
        error = statistics.stdev(ratios) / math.sqrt(len(ratios))
        measured = {
            "kl": sum(ratios) / len(answers),
            "kl_error": error,
            "perplexity_of_people": policy.perplexity(self.people),
        }
        return self.of_answers(answers) | measured, answers

    def best_of(self, n: int, seed: int, num_prompts: int) -> tuple[dict, list[Answer]]:
        """Returns the measures of the best of n answers of the SFT model, and these answers.

        The divergence is its bound (Stiennon et al. 2020, appendix G.3).
        """
        from transformer_jax.inference.generation import best_of

        sft, reward = self.sft, self.reward
        draw = partial(sft.task.replies, sft.params, max_tokens=MAX_TOKENS, seed=seed)
        prompts = self.prompts[:num_prompts]
        chosen = best_of(draw, partial(reward.task.score, reward.params), prompts, n)
        answers = [answered(prompt, each) for prompt, each in zip(prompts, chosen)]
        measured = {
            "kl": math.log(n) - (n - 1) / n,
            "perplexity_of_people": sft.perplexity(self.people),
        }
        return self.of_answers(answers) | measured, answers


def share(log_odds: Iterable[float]) -> float:
    """Returns the share of the texts that are positive."""
    return statistics.fmean(value > 0 for value in log_odds)


def summary(measured: Sequence[dict]) -> dict:
    """Returns the mean, deviation and values of each measure over the seeds."""
    spread = {}
    for name in measured[0]:
        values = [each[name] for each in measured]
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        spread[name] = {"mean": statistics.fmean(values), "deviation": deviation, "values": values}
    return spread
