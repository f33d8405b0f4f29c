"""The contract of the three kinds of model."""

import pytest

from transformer_jax.config import UserError, named_class
from transformer_jax.contracts.model import KINDS, Encoder, check_class


@pytest.mark.parametrize("name", ["bart", "bert", "distilbert", "encoder_decoder", "gpt", "t5"])
def test_a_family_is_of_one_kind(name):
    cls = named_class("model", name)
    assert sum(issubclass(cls, kind) for kind in KINDS) == 1
    assert not cls.missing()


def test_a_class_without_a_method_of_its_kind_is_refused():
    class States(Encoder):
        can = frozenset({"pool"})

        def hidden(self, tokens, **options):
            return tokens

        def flops(self, length, predictions):
            return 0.0

    assert States.missing() == ["layers", "output", "pooled"]
    with pytest.raises(UserError, match="^f.py: the class States .* 'encoder' .* method 'layers'$"):
        check_class(States, "f.py")


def test_a_class_of_no_kind_is_refused():
    class Table:
        pass

    with pytest.raises(UserError, match="^f.py: the class Table .* Encoder, Causal, Sequence"):
        check_class(Table, "f.py")
