"""Measures of policies on held-out prompts, for benchmarks/preferences.py."""

import dataclasses
import math
import pathlib
import statistics
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

MAX_TOKENS = 48  # of a completion; conversations are shorter
DRAWS = {"decode.batch": 256}


class Completion(NamedTuple):
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

    def completions(self, prompts: Sequence[str], seed: int = 0) -> list[Completion]:
        """Returns a drawn completion of each prompt, at temperature 1."""
        drawn = self.task.replies(self.params, prompts, max_tokens=MAX_TOKENS, seed=seed)
        return [completed(prompt, each) for prompt, each in zip(prompts, drawn)]

    def log_probs(self, completions: Sequence[Completion]) -> tuple[list[float], int]:
        """Returns log P(completion | prompt) in nats of each, and the number of their tokens.

        A completion is encoded again, and has its end where it ended.
        """
        tokenizer = self.task.tokenizer
        prompts = tokenizer.prompts([[of_user(completion.prompt)] for completion in completions])
        ids = [
            tokenizer.completion(completion.text)[: None if completion.ended else -1]
            for completion in completions
        ]
        filled = [(prompt, each) for prompt, each in zip(prompts, ids) if each]
        likelihoods = list(self.task.token_log_likelihoods(self.params, filled))
        return [each.log_prob for each in likelihoods], sum(each.tokens for each in likelihoods)

    def perplexity(self, completions: Sequence[Completion]) -> float:
        log_probs, num_tokens = self.log_probs(completions)
        return math.exp(-sum(log_probs) / num_tokens)


def of_user(text: str) -> dict:
    return {"role": "user", "content": text}


def of_people(conversations: Sequence[dict]) -> list[Completion]:
    """Returns the completions of conversations."""
    return [Completion(each["prompt"], each["completion"], True) for each in conversations]


def completed(prompt: str, drawn) -> Completion:
    """Returns the completion of a Continuation."""
    return Completion(prompt, drawn.text, drawn.finished == "end")


def log_odds(classifier: Run, completions: Sequence[Completion]) -> list[float]:
    """Returns the log-odds that prompt and completion are positive, by a classifier."""
    texts = [" ".join((completion.prompt + completion.text).split()) for completion in completions]
    predictions = classifier.task.predict(classifier.params, texts)
    probabilities = [each.details["probabilities"] for each in predictions]
    return [math.log(each["1"]) - math.log(each["0"]) for each in probabilities]


@dataclasses.dataclass(frozen=True)
class Measures:
    """Measures completions by four runs: the SFT model, the reward model, and two classifiers."""

    sft: Run
    reward: Run
    labeller: Run
    judge: Run
    people: list[Completion]  # of held-out conversations

    @property
    def prompts(self) -> list[str]:
        return [completion.prompt for completion in self.people]

    def of_completions(self, completions: Sequence[Completion]) -> dict:
        """Returns reward, shares judged positive and perplexity under the SFT model."""
        pairs = [(completion.prompt, completion.text) for completion in completions]
        lengths = [len(completion.text.split()) for completion in completions]
        return {
            "reward": statistics.fmean(self.reward.task.score(self.reward.params, pairs)),
            "positive": share(log_odds(self.judge, completions)),
            "labelled_positive": share(log_odds(self.labeller, completions)),
            "perplexity": self.sft.perplexity(completions),
            "words": statistics.fmean(lengths),
            "ended": statistics.fmean(completion.ended for completion in completions),
        }

    def of_policy(self, policy: Run, seed: int) -> tuple[dict, list[Completion]]:
        """Returns the measures of a policy, and its completions of the held-out prompts.

        The divergence is the mean over the completions of log P_policy - log P_SFT, in nats a text.
        """
        completions = policy.completions(self.prompts, seed)
        of_policy, _ = policy.log_probs(completions)
        of_sft, _ = self.sft.log_probs(completions)
        ratios = [a - b for a, b in zip(of_policy, of_sft)]
        error = statistics.stdev(ratios) / math.sqrt(len(ratios))
        measured = {
            "kl": sum(ratios) / len(completions),
            "kl_error": error,
            "perplexity_of_people": policy.perplexity(self.people),
        }
        return self.of_completions(completions) | measured, completions

    def best_of(self, n: int, seed: int, num_prompts: int) -> tuple[dict, list[Completion]]:
        """Returns the measures of the best of n completions of the SFT model, and these.

        The divergence is its bound (Stiennon et al. 2020, appendix G.3).
        """
        from transformer_jax.inference.generation import best_of

        sft, reward = self.sft, self.reward
        draw = partial(sft.task.replies, sft.params, max_tokens=MAX_TOKENS, seed=seed)
        prompts = self.prompts[:num_prompts]
        chosen = best_of(draw, partial(reward.task.score, reward.params), prompts, n)
        completions = [completed(prompt, each) for prompt, each in zip(prompts, chosen)]
        measured = {
            "kl": math.log(n) - (n - 1) / n,
            "perplexity_of_people": sft.perplexity(self.people),
        }
        return self.of_completions(completions) | measured, completions


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
