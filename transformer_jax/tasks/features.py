"""Hidden states of a model without a head, such as a converted BertModel."""

import dataclasses
from functools import cached_property

import jax.numpy as jnp

from transformer_jax.config import UserError, build_model
from transformer_jax.data import tokenizers
from transformer_jax.inference.encoder import EncoderStates
from transformer_jax.objectives.texts import BaseTask


@dataclasses.dataclass
class Features(EncoderStates, BaseTask):
    """A model without the head of an objective, which gives hidden states and vectors of texts.

    It is not trained as it is: other runs start from it by `config.init_from`.
    """

    modality = None

    # whether the model has the layer, such as BERT's pooler, through which a head reads one vector
    # of a row
    pooled: bool = False

    def __post_init__(self):
        self.model = build_model(self.config)
        self.coefficients = {}

    @cached_property
    def tokenizer(self):
        if self.model.modality != "tokens":
            return None
        data = self.config.data
        return tokenizers.run_tokenizer(
            self.tokenizer_folder, data, lambda: (), self.model.vocab_size
        )

    def init(self, rng):
        # Linen makes parameters only for what is called, so that heads get none. The published
        # models without a head have the parts that contacts and permuted targets read.
        def used(model, inputs):
            states = model.layers(inputs)
            if self.pooled:
                model.pooled(states[-1])
            if "contact" in model.can:
                model.contact_logits(jnp.zeros((1, 2, 2, model.num_layers * model.num_heads)))
            if "permute" in model.can:
                model.permuted(dataclasses.replace(inputs, ranks=inputs.tokens), inputs.tokens)
            return states

        example = jnp.zeros((1, *self.model.example_shape), self.model.example_dtype)
        inputs = self.model.reads(**{self.model.modality: example})
        return self.model.init(rng, inputs, method=used)["params"]

    @property
    def attentions(self):
        return self.model.attentions if self.model.kind == "encoder" else ()

    def features(self, params, texts, layers=(-1,), *, long="truncate"):
        """Yields the tokens of each text and their hidden states, as `StatesUse.features` does.

        A model of images or audio has none: it reads arrays of the shape that its `hidden` takes.
        """
        if self.tokenizer is None:
            name = self.config.model.name
            raise UserError(
                f"config.model.name={name!r} reads no texts; its states are those of "
                'model.apply({"params": params}, ..., method="hidden")'
            )
        return super().features(params, texts, layers, long=long)

    def _refused(self, *_):
        raise UserError(
            "config.task.name='features': a model without a head is not trained; start a run of "
            "another task from it by config.init_from"
        )

    rows = weights = loss = batch_spec = flops = positions = evaluate = _refused

    def fingerprint(self):
        tokenizer = self.tokenizer
        return {"train": [], "tokenizer": None if tokenizer is None else tokenizer.fingerprint()}
