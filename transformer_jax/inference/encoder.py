"""The uses of a trained encoder: filling masks, and reading hidden states."""

from collections.abc import Iterable, Iterator

from transformer_jax.data import arguments
from transformer_jax.inference import attention, framing
from transformer_jax.inference.filling import Filling
from transformer_jax.inference.states import StatesUse
from transformer_jax.pictures.attended import Attended


class EncoderUse(StatesUse):
    """The methods of a task whose model is of the kind Encoder."""

    @property
    def text_tokenizer(self):
        return self.tokenizer

    @property
    def attentions(self) -> tuple[str, ...]:
        """The kinds of attention that `attention` returns."""
        return self.model.attentions

    def fill(
        self, params, texts: Iterable[str], top_k: int = 5, *, long: str = "split"
    ) -> Iterator[list[list[Filling]]]:
        """Yields the `top_k` likeliest words for each [MASK] of each text. An empty text has none.

        `long` decides about a text longer than `config.model.max_length`. "split" reads its
        sentences one by one, and a longer sentence in parts; "skip" fills nothing; "refuse" raises
        UserError. A warning at the end names the numbers of these texts. Raises UserError for a
        text without [MASK].
        """
        return self._reader(params).fill(params, arguments.as_texts(texts), top_k, long)

    def attention(self, params, text: str, *, pieces: bool = False) -> Attended:
        """Returns the attention weights between the words of a text; with `pieces`, its tokens.

        [CLS], [SEP] and each [MASK] are among them. Raises UserError for a text longer than
        `config.model.max_length`.
        """
        begin, end = framing.of_text(self.model, self.tokenizer)
        ids = [*begin, *self.tokenizer.encode_masked(text), *end]
        return attention.in_text(
            self.model, params, self.tokenizer, ids, stack="encoder", pieces=pieces
        )
