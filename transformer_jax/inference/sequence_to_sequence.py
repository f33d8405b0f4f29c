"""The uses of a trained encoder-decoder: translating by beam search."""

import itertools
from collections.abc import Iterable, Iterator

from transformer_jax.data import arguments
from transformer_jax.inference import attention
from transformer_jax.inference.states import StatesUse
from transformer_jax.inference.stream import Stream
from transformer_jax.inference.translating import Hypothesis, Translator
from transformer_jax.pictures.attended import Attended
from transformer_jax.pictures.progress import say, track


class SequenceToSequenceUse(StatesUse):
    """The methods of a task whose model is of the kind SequenceToSequence.

    Its tokenizer is a pair, of source and target.
    """

    @property
    def text_tokenizer(self):
        return self.tokenizer.source

    @property
    def attentions(self) -> tuple[str, ...]:
        """The kinds of attention that `attention` returns."""
        return self.model.attentions

    def translate(
        self, params, lines: Iterable[str], n_best: int = 1, *, long: str | None = None
    ) -> Iterator[list[Hypothesis]]:
        """Yields the `n_best` translations of each line, in order. An empty line stays empty.

        The beam search is that of `config.decode`; one beam is greedy search. More translations
        than beams raise UserError. The number of lines in memory is bounded.

        `long` decides about a line that is longer than `config.model.max_length` allows. "split",
        the default, translates its sentences one by one, and a longer sentence in parts that end at
        a space; it joins their n-th translations and adds their scores. "truncate" cuts the
        line, "skip" leaves its translation empty, "refuse" raises UserError. A warning at the end
        names the numbers of these lines.
        """
        return self.translator(params, arguments.as_texts(lines), n_best, long or "split")

    def translated_pairs(
        self, params, pairs: Iterable[tuple[str, str]], count: int | None = None
    ) -> tuple[list[str], list[str]]:
        """Returns (translations, references) of the first `count` pairs; of all where it is None.

        The translation of a sentence that is too long is empty.
        """
        inputs, references = map(list, zip(*itertools.islice(pairs, count)))
        max_tokens = self.translator.max_source
        is_long = [len(ids) > max_tokens for ids in self.tokenizer.source.encode(inputs)]
        if any(is_long):
            say(
                f"{sum(is_long)} sentences are longer than the {max_tokens} tokens that can be "
                "translated: their translations count as empty"
            )
            inputs = ["" if long else line for line, long in zip(inputs, is_long)]
        tracked = track(inputs, "translating", len(inputs))
        return [best[0].text for best in self.translate(params, tracked)], references

    def stream(self, params, n_best: int) -> Stream:
        """Returns the beam search of `config.decode`; its inputs are source ids with their end.

        It runs on the devices of `params`.
        """
        return self.translator.stream(params, n_best)

    @property
    def translator(self) -> Translator:
        return Translator(self.model, self.tokenizer, self.config.decode, self.config.mesh)

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
