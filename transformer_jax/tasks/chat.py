"""Supervised fine-tuning on conversations: predicting each token that the assistant writes."""

import dataclasses
from functools import cached_property

import jax.numpy as jnp

from transformer_jax.data import arguments, tokenizers
from transformer_jax.data.chat_rows import ChatRows
from transformer_jax.data.tokenizers.chat import MARKS
from transformer_jax.objectives.texts import NextTokens


@dataclasses.dataclass
class Chat(NextTokens):
    """The objective of Ouyang et al. 2022, section 3.5 ("SFT"), with the loss of answers alone.

    The loss is the mean over the tokens of the assistant, the end of each answer among them. A row
    holds several conversations, which do not see each other. A conversation that is longer than a
    row loses its end.
    """

    takes_model = True
    written_as = "causal_lm"

    # the tokens in front of a message of the system, the user and the assistant, and behind each
    special_tokens: tuple = MARKS

    @cached_property
    def texts(self) -> ChatRows:
        return ChatRows(self.config, self.length)

    @cached_property
    def tokenizer(self) -> tokenizers.ChatTokenizer:
        return tokenizers.chat_of_run(
            self.tokenizer_folder,
            self.config.data,
            self.texts.training_text,
            self.model.vocab_size,
            self.special_tokens,
        )

    @classmethod
    def new_tokens(cls, config, earlier):
        tokenizer = tokenizers.load(earlier.workdir / "tokenizer")
        needed = tokenizers.with_marks(tokenizer, config.task.special_tokens).vocab_size
        return max(needed - earlier.config.model.vocab_size, 0)

    def batch_spec(self, row_shape: int = 0):
        keys = ("tokens", "labels", "weights", "positions", "segment_ids")
        return self.int32_spec(dict.fromkeys(keys, (self.length,)))

    def filled(self, batch):
        return (batch["segment_ids"] > 0).sum(dtype=jnp.int32)

    def evaluate(self, params, split: str) -> dict:
        """Returns loss, accuracy and perplexity for each token of the assistant, in a split.

        "tokens" is their number. Raises UserError where the run has no such split.
        """
        arguments.held_out(self.texts.text, split, "files")
        evaluated = self.texts.evaluation(self.tokenizer, split)
        means = self.mean_metrics(params, evaluated)
        means.pop("filled")
        meta = evaluated.component.meta
        counts = {"tokens": meta["answers"], "conversations": meta["conversations"]}
        return means | self.derived(split, means) | counts
