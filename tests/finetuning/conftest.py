"""The pre-trained runs of the fine-tuning tests."""

import pytest

from tests.few_devices import few_devices  # noqa: F401
from tests.finetuning.examples import pretrained


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """The workdirs of an initial BERT and an initial GPT, by family."""
    folder = tmp_path_factory.mktemp("pretrained")
    return {family: pretrained(folder, family) for family in ("bert", "gpt")}
