"""The uses of a trained encoder-decoder: translating by beam search."""

from collections.abc import Iterable, Iterator
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.data import arguments
from transformer_jax.inference import attention
from transformer_jax.inference.stream import Stream
from transformer_jax.inference.translating import Hypothesis, Translator
from transformer_jax.pictures.attended import Attended


class SequenceToSequenceUse:
    """The methods of a task whose model is of the kind SequenceToSequence."""

    config: ConfigDict
    model: Any
    tokenizer: Any  # of source and target

    @property
    def attentions(self) -> tuple[str, ...]:
        """The kinds of attention that `attention` returns."""
        return attention.kinds(self.model)

    def translate(
        self, params, lines: Iterable[str], n_best: int = 1, *, long: str = "split"
    ) -> Iterator[list[Hypothesis]]:
        """Yields the `n_best` translations of each line, in order. An empty line stays empty.

        The beam search is that of `config.decode`; one beam is greedy search. More translations
        than beams raise UserError. The number of lines in memory is bounded.

        `long` decides about a line that is longer than `config.model.max_length` allows. "split"
        translates its sentences one by one, and a longer sentence in parts that end at a space; it
        joins their n-th translations and adds their scores. "truncate" cuts the line, "skip"
        leaves its translation empty, "refuse" raises UserError. A warning at the end names the
        numbers of these lines.
        """
        return self.translator(params, arguments.as_texts(lines), n_best, long)

    def stream(self, n_best: int) -> Stream:
        """Returns the beam search of `config.decode`; its inputs are source ids with their end."""
        return self.translator.stream(n_best)

    @property
    def translator(self) -> Translator:
        return Translator(self.model, self.tokenizer, self.config.decode)

    def attention(
        self,
        params,
        source: str,
        target: str | None = None,
        kind: str = "cross",
        *,
        pieces: bool = False,
    ) -> Attended:
        """Returns the attention weights between the words of a translation; with `pieces`, tokens.

        `target` is by default the model's own translation. `kind` is "cross" (the translation
        attends to the source), "decoder" (the translation attends to itself) or "encoder" (the
        source attends to itself). End tokens are included. A query of the decoder is labelled with
        the word it predicts, a key with the word it has read. Raises UserError for a text longer
        than `config.model.max_length`.
        """
        if target is None:
            target = ""
            if kind != "encoder":
                target = next(self.translate(params, [source], long="refuse"))[0].text
        return attention.in_translation(
            self.model, params, self.tokenizer, (source, target), kind=kind, pieces=pieces
        )
