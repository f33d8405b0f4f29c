"""GRPO with a verifiable reward: how close a reply is to the translation by the grammar."""

import dataclasses
from functools import cached_property

import sacrebleu

from transformer_jax.config import UserError
from transformer_jax.data import chat_rows
from transformer_jax.data.sources.chat import CORPUS
from transformer_jax.tasks.rl.grpo import GRPO


@dataclasses.dataclass
class GrammarReward(GRPO):
    """GRPO on the built-in questions for translations, without a reward model.

    The reward of a reply is computed in Python, as in reinforcement learning with verifiable
    rewards (Lambert et al. 2024, section 6): its chrF1 against the grammar's own translation, from
    0 to 1. Unlike an exact match, chrF also tells bad replies from worse ones.
    """

    def _check(self):
        if self.config.data.corpus != CORPUS:
            raise UserError(
                f"config.data.corpus={self.config.data.corpus!r}: grammar_reward knows only the "
                f"translations of {CORPUS!r}; for other prompts, write a reward_of in a file of "
                "your own"
            )
        super()._check()

    @cached_property
    def _replies(self) -> dict[str, str]:
        """{prompt: the grammar's reply} for all splits."""
        splits = ("train", "valid", "test")
        prompts, replies = zip(*(pair for split in splits for pair in self.read(split).answered()))
        ids = chat_rows.prompt_ids(self.tokenizer, prompts, self.with_start)
        # By their tokens, because a prompt reaches `reward_of` cut and without the special tokens.
        texts = self.tokenizer.decode([prompt[-self.prompt_length :] for prompt in ids])
        return dict(zip(texts, replies))

    def reward_of(self, prompt: str, completion: str) -> float:
        """Returns the chrF1 of a reply."""
        # With sacreBLEU's default beta of 2, recall counts more than precision, and the policy
        # learns to write more and not better.
        score = sacrebleu.sentence_chrf(completion, [self._replies[prompt]], beta=1)
        return score.score / 100
