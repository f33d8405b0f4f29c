"""Supervised fine-tuning on conversations: predicting the tokens of the assistant's messages."""

import dataclasses
from functools import cached_property

import jax.numpy as jnp

from transformer_jax.data import arguments, tokenizers
from transformer_jax.data.chat_rows import ChatRows
from transformer_jax.data.tokenizers.chat import SPECIAL_TOKENS
from transformer_jax.objectives.texts import NextTokens


@dataclasses.dataclass
class Chat(NextTokens):
    """Supervised fine-tuning with a loss on completions only (Ouyang et al. 2022, section 3.5).

    The loss is the mean over the tokens of the assistant's messages, including their end tokens. A
    row holds several conversations, which do not attend to each other. A conversation that is
    longer than a row is cut at its end.
    """

    takes_model = True
    written_as = "causal_lm"
    program = "generate --chat"

    # tokens before a message of the system, the user and the assistant, and the token after each;
    # (): conversations have the form of the tokenizer's own chat template
    special_tokens: tuple = SPECIAL_TOKENS

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
        if not config.task.special_tokens:
            return 0
        tokenizer = tokenizers.load(earlier.workdir / "tokenizer")
        needed = tokenizers.with_special_tokens(tokenizer, config.task.special_tokens).vocab_size
        # A vocabulary that is larger than its tokenizer may have room for them already.
        return max(needed - earlier.config.model.vocab_size, 0)

    def batch_spec(self, row_shape: int = 0):
        keys = ("tokens", "labels", "weights", "positions", "segment_ids")
        return self.int32_spec(dict.fromkeys(keys, (self.length,)))

    def filled(self, batch):
        # Prompts are not padding, although their tokens have no weight.
        return (batch["segment_ids"] > 0).sum(dtype=jnp.int32)

    def evaluate(self, params, split: str) -> dict:
        """Returns loss, accuracy and perplexity of a split, over the tokens of the assistant.

        "tokens" is their number. Raises UserError if the run has no such split.
        """
        arguments.held_out(self.texts.text, split, "files")
        evaluated = self.texts.evaluation(self.tokenizer, split)
        means = self.mean_metrics(params, evaluated)
        means.pop("filled")
        meta = evaluated.component.meta
        counts = {"tokens": meta["answers"], "conversations": meta["conversations"]}
        return means | self.derived(split, means) | counts
