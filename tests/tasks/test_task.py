"""The contract: a class without one of its methods is refused by the method's name."""

import pytest

from transformer_jax.config import UserError
from transformer_jax.contracts.task import check_class
from transformer_jax.finetuning.base import FineTuning
from transformer_jax.objectives.texts import BaseTask
from transformer_jax.tasks.causal_lm import CausalLM


class WithoutLoss(BaseTask):
    batch_spec = init = rows = fingerprint = weights = flops = positions = evaluate = None


class NoTask:
    loss = None


def test_a_class_that_breaks_the_contract_is_refused_in_one_line():
    with pytest.raises(UserError, match="f.py: the class WithoutLoss .* lacks the method 'loss'$"):
        check_class(WithoutLoss, "f.py")
    with pytest.raises(UserError, match="f.py: the class NoTask must derive from BaseTask"):
        check_class(NoTask, "f.py")
    with pytest.raises(
        UserError, match="f.py: the class FineTuning .* lacks the method 'examples'"
    ):
        check_class(FineTuning, "f.py")
    check_class(CausalLM, "f.py")
