"""GloVe: two tables of word vectors and biases that fit the logarithms of co-occurrence counts."""

from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.config import PositiveInt
from transformer_jax.families.word_vectors import WordVectors
from transformer_jax.layers.embeddings import Bias, Embed, Projection


class GloVe(WordVectors):
    """The model of Pennington et al. 2014, equation 7.

    The vector of a word is the sum of its vectors in both tables.
    """

    can = WordVectors.can | {"cooccur"}
    vocabulary = (
        *("token_embed/embedding", "output_embed/embedding"),
        *("token_bias/bias", "output_bias/bias"),
    )
    heads = ("token_bias", "output_bias")

    vocab_size: PositiveInt = 400_000  # number of tokens in the vocabulary
    d_model: PositiveInt = 300  # width of the vectors

    def setup(self):
        self.token_embed = Embed(self.vocab_size, self.d_model, self._uniform)
        self.output_embed = Embed(self.vocab_size, self.d_model, self._uniform)
        self.token_bias = Bias(self.vocab_size, "vocab")
        self.output_bias = Bias(self.vocab_size, "vocab")

    def vectors(self) -> Float[ArrayLike, "V M"]:
        return self.token_embed.table() + self.output_embed.table()

    def log_counts(
        self, first: Int[ArrayLike, "B N"], second: Int[ArrayLike, "B N"]
    ) -> Float[Array, "B N"]:
        """Returns the predicted log counts of pairs of words (B, N) (equation 7)."""
        products = self.token_embed(first) * self.output_embed(second)
        return products.sum(axis=-1) + self.token_bias()[first] + self.output_bias()[second]

    def _embed(self, tokens: Int[ArrayLike, "B L"]) -> Float[Array, "B L M"]:
        # Two lookups, because the sum of the tables would touch the whole vocabulary for each row.
        return self.token_embed(tokens) + self.output_embed(tokens)

    def output(self) -> Projection:
        return Projection(self.output_embed.table(), self.output_bias())
