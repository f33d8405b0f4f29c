"""Shared by the tasks on proteins: rows of one protein each, and the alphabet of residues."""

import dataclasses
from functools import cached_property

import jax.numpy as jnp

from transformer_jax.config import build_model
from transformer_jax.data import tokenizers
from transformer_jax.families.esm.contacts import ContactsUse
from transformer_jax.inference.encoder import EncoderUse
from transformer_jax.objectives.texts import SourceTask, check_row_length


@dataclasses.dataclass
class ProteinTask(ContactsUse, EncoderUse, SourceTask):
    """A task whose rows are <cls> residues <eos>: one protein, or a part of a longer one."""

    length: int = 1024  # tokens of a row, including <cls> and <eos>

    def __post_init__(self):
        self.model = build_model(self.config)
        # The shortest row is <cls>, one residue and <eos>.
        check_row_length("length", self.length, self.model, least=3)

    @cached_property
    def tokenizer(self) -> tokenizers.Tokenizer:
        """The alphabet of residues, as a tokenizer."""
        folder, data = self.tokenizer_folder, self.config.data
        return tokenizers.residues_of_run(folder, data, self.model.vocab_size)

    def fingerprint(self) -> dict:
        return super().fingerprint() | {"tokenizer": self.tokenizer.fingerprint()}

    def batch_spec(self, row_shape: int):
        return self.int32_spec(dict.fromkeys(("tokens", "segment_ids"), (self.length,)))

    def init(self, rng):
        # No parameter's shape depends on the length of this row, and a short one is cheap.
        return self.model.init(rng, jnp.zeros((1, 8), jnp.int32))["params"]

    def positions(self, row_shape: int = 0) -> int:
        return self.length
