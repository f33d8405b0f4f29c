"""Code of tasks that write answers to prompts: the prompts, and the answers in a compiled step."""

import dataclasses
import types
from functools import cached_property

import jax
import jax.numpy as jnp

from transformer_jax.config import UserError
from transformer_jax.data import completions
from transformer_jax.data.prompt_rows import PromptRows
from transformer_jax.data.rows import train_rows
from transformer_jax.data.sources import prompts
from transformer_jax.inference.answers import Answers, Writer
from transformer_jax.inference.sampling import Sampling
from transformer_jax.pictures.progress import say
from transformer_jax.tasks.continued import Continued
from transformer_jax.tasks.task import Batch, Params


@dataclasses.dataclass
class Prompted(Continued):
    """A language model that writes answers to the prompts of `config.data`.

    A row of a batch is a prompt: `prompts` (P,) and `prompt_lengths` (), int32.
    """

    prompt_length: int = 64  # most tokens of a prompt; a longer one loses its beginning
    max_tokens: int = 32  # most tokens of an answer, its end included
    temperature: float = 1.0  # divisor of the logits, in sampling and in learning

    evaluates_rows = False
    num_answers = 1  # to each prompt

    def require(self, key: str, is_right: bool, bounds: str) -> None:
        """Raises UserError for a value of config.task.<key> out of its bounds."""
        if not is_right:
            raise UserError(f"config.task.{key}={getattr(self, key)}: must be {bounds}")

    @property
    def length(self) -> int:
        """The tokens of a row: a prompt and its answer."""
        return self.prompt_length + self.max_tokens

    # data

    def read(self, split: str) -> prompts.Prompts | None:
        return prompts.of_split(self.config.data, split)

    def prompt_rows(self, split: str) -> PromptRows | None:
        """Returns the prompts of a split; None where `config.data` names none."""
        texts = self.read(split)
        if texts is None:
            return None
        ids = completions.prompt_ids(self.tokenizer, list(texts), self.with_start)
        if not ids:
            raise UserError(f"config.data.{split}_files: no prompt in it")
        num_cut = sum(len(prompt) > self.prompt_length for prompt in ids)
        say(f"{split}: {len(ids):,} prompts")
        if num_cut:
            say(f"{num_cut:,} prompts are cut to their last {self.prompt_length} tokens")
        return PromptRows([prompt[-self.prompt_length :] for prompt in ids], self.prompt_length)

    @cached_property
    def _rows(self) -> types.SimpleNamespace:
        valid = self.prompt_rows("valid")  # raises its errors before training
        train = self.prompt_rows("train")
        if train is None:
            raise UserError("config.data.train_files is missing: the prompts of the answers")
        drawn = train_rows([train], self.config)
        # The loss of an answer needs the experience of a step, so no mean loss is evaluated.
        return types.SimpleNamespace(train=drawn, eval={}, valid=valid)

    def rows(self):
        return self._rows

    def batch_spec(self, row_shape: int = 0):
        return self.int32_spec({"prompts": (self.prompt_length,), "prompt_lengths": ()})

    # answers

    @cached_property
    def end_id(self) -> int:
        """The token that ends an answer; 0 in a run that is only planned, without a tokenizer."""
        return completions.end_id(self.tokenizer) if self.has_tokenizer else 0

    def written(self, params: Params, batch: Batch, key: jax.Array) -> Batch:
        """Returns the arrays of `Answers` to the prompts of a batch, `num_answers` to each."""
        prompts, lengths = (
            jnp.repeat(batch[name], self.num_answers, axis=0)
            for name in ("prompts", "prompt_lengths")
        )
        how = Sampling(temperature=self.temperature)
        write = Writer(self.model, how, self.max_tokens, self.end_id)
        apart = self.heads + self.other_runs  # what the model does not read
        own = {name: tree for name, tree in params.items() if name not in apart}
        return write(own, prompts, lengths, key)._asdict()

    def texts_of(self, answers: Answers) -> tuple[list[str], list[str]]:
        """Returns the texts of prompts and of their answers, from arrays on the host."""
        ends = answers.lengths - answers.ended
        rows = [*zip(answers.ids.tolist(), answers.begins, ends)]
        prompts = [ids[:begin] for ids, begin, _ in rows]
        return self.tokenizer.decode(prompts), self.tokenizer.decode(
            [ids[begin:end] for ids, begin, end in rows]
        )
