"""Causal language modeling: predicting each token from the tokens before it."""

import dataclasses
from functools import cached_property

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.contracts.task import Context, EvaluationProgram
from transformer_jax.data import arguments
from transformer_jax.data.texts import TextWindows
from transformer_jax.inference.generation import Sampling
from transformer_jax.inference.log_probabilities import LeftToRight
from transformer_jax.objectives.texts import NextTokens, carried_states, perplexities, perplexity
from transformer_jax.pictures.progress import say

_COUNTED = 2**24  # bytes counted for the n-gram baselines, so that a large text takes no longer
_SAMPLING = Sampling(temperature=0.8)  # for the text that an evaluation prints


@dataclasses.dataclass
class CausalLM(NextTokens):
    """The cross-entropy of each token given the tokens before it (Radford et al. 2018, eq. 1)."""

    # tokens of a text that is generated and printed at each evaluation; 0: none
    sample_tokens: int = 0
    # rows continue the rows of the previous update, from which the model's state is carried over
    carry: bool = False
    # rows go on across documents; false: a training row has one document, or a part of it, and
    # padding after it
    pack: bool = True

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.sample_tokens < self.model.window:
            raise UserError(
                f"config.task.sample_tokens={self.sample_tokens}: must be from 0 to "
                f"config.model.max_length - 1 = {self.model.window - 1}"
            )
        if self.carry:
            self._check_carry()
        if not 0 <= self.config.decode.stride <= self.length:
            raise UserError(
                f"config.decode.stride={self.config.decode.stride}: must be from 0 to "
                f"config.task.length={self.length}"
            )

    def _check_carry(self) -> None:
        self.texts.check_streams("config.task.carry")
        if not self.pack:
            raise UserError(
                "config.task.pack=False: not with config.task.carry, where each row continues the "
                "row before it; leave out one of them"
            )
        if "carry" not in self.model.can:
            raise UserError(
                f"config.task.carry: config.model.name={self.config.model.name!r} has no state to "
                "carry from row to row; set it to false, or take a recurrent model"
            )

    @cached_property
    def texts(self) -> TextWindows:
        return TextWindows(self.config, self.length, self.carry, self.pack)

    @property
    def scoring(self) -> LeftToRight:
        segment = self.length if self.carry else None
        return dataclasses.replace(super().scoring, segment=segment)

    def batch_spec(self, row_shape: int):
        keys = ["tokens", "labels", "weights"]
        if self.carry:
            keys += ["restarts"]
        elif self.config.data.mask_documents:
            keys += ["positions", "segment_ids"]
        return self.int32_spec(dict.fromkeys(keys, (self.length,)))

    def initial_carry(self, rows: int):
        return self.model.initial_carry(rows) if self.carry else None

    def states(self, params, batch, context: Context):
        if self.carry:
            return *carried_states(self.model, params, batch, context), {}
        return super().states(params, batch, context)

    def derived(self, name, means):
        return perplexities(means["loss"], self._rows.eval[name].component.store.meta)

    def evaluations(self):
        return {"sample": self._print_sample} if self.sample_tokens else {}

    def _print_sample(self, params) -> dict:
        (sample,) = self.generate(params, [""], max_tokens=self.sample_tokens, how=_SAMPLING)
        say(f"a sample:\n{sample.text}")
        return {}

    def evaluation_programs(self, params):
        if not self.sample_tokens:
            return {}
        from transformer_jax.inference import lowering  # which only a plan of a run needs

        remedy = "--config.task.sample_tokens=0: no sample is printed"
        sample = lowering.generation(self.model, params, self.config, self.sample_tokens, _SAMPLING)
        return {"a sample": EvaluationProgram(*sample, remedy)}

    def evaluate(self, params, split: str) -> dict:
        """Returns loss, accuracy, perplexity, and bits per byte and per character of a split.

        The losses of n-gram models serve as baselines, provided that the training text, on which
        they are counted, can still be read. The model reads windows that slide over the text by
        `config.decode.stride`; a model with a carry reads the text once, as a single stream. Raises
        UserError if the run has no such split.
        """
        arguments.held_out(self.texts.text, split, "files")
        # By default, each token has at least half a window of context, apart from the first ones.
        stride = self.config.decode.stride or max(self.length // 2, 1)
        evaluated = self.texts.evaluation(self.tokenizer, split, stride)
        means = self.mean_metrics(params, evaluated)
        meta = evaluated.component.store.meta
        return {
            "loss": means["loss"],
            "accuracy": means["accuracy"],
            **perplexities(means["loss"], meta),
            "tokens": meta["tokens"],
            "bytes": meta["bytes"],
            "length": self.length,
            "stride": evaluated.component.stride,
            "ngrams": self._ngrams(evaluated.component.store),
        }

    def _ngrams(self, stored) -> dict | None:
        """Returns the scores of n-gram models on the tokens of a store; None without training text.

        The models are counted on the training text.
        """
        from transformer_jax.scores import ngrams

        try:
            counted = self.texts.counted(self.tokenizer, _COUNTED)
        except UserError as error:
            # A run can still be evaluated where its training text has been deleted.
            say(f"no n-gram models: {error}")
            return None
        (tokens,) = stored.read([(0, stored.meta["tokens"])])
        # The first token is predicted from the end of a document.
        text = np.concatenate([[self.tokenizer.eos_id], tokens])
        scores = ngrams.scores(counted, text, self.tokenizer.vocab_size)
        for values in scores.values():
            values["perplexity"] = perplexity(values["loss"])
        return {"tokens": len(counted), **scores}
