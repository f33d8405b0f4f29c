"""The checks of a fine-tuning's keys."""

from transformer_jax.config import UserError


def check(task) -> None:
    """Raises UserError for keys of `config.task` that do not suit the model or each other."""
    _check_rows(task)
    _check_objective(task)


def _check_rows(task) -> None:
    model = task.model
    has_decoder = model.kind == "sequence_to_sequence" and not task.source_only
    if has_decoder and model.source_vocab_size is not None:
        raise UserError(
            f"config.model.source_vocab_size={model.source_vocab_size}: an encoder-decoder is "
            "fine-tuned on texts that both of its sides read, with one vocabulary"
        )
    has_types = "token_types" in model.can
    if task.two_texts and has_types and model.num_token_types < 2:
        raise UserError(
            f"config.model.num_token_types={model.num_token_types}: two texts in a row need 2"
        )
    if not 8 <= task.length <= model.window:
        raise UserError(
            f"config.task.length={task.length}: must be from 8 to "
            f"config.model.max_length={model.max_length}"
        )
    if task.group_by_length < 1:
        raise UserError(f"config.task.group_by_length={task.group_by_length}: must be at least 1")


def _check_objective(task) -> None:
    key = f"config.task.lm_weight={task.lm_weight}"
    if task.lm_weight < 0:
        raise UserError(f"{key}: must be at least 0")
    if task.lm_weight and task.model.kind != "causal":
        raise UserError(f"{key}: {task.config.model.name} is no language model; set it to 0")
    if task.lm_weight and task.frozen:
        raise UserError(f"{key}: a frozen model does not learn; set it to 0")
    if not 0 <= task.head_dropout < 1:
        raise UserError(
            f"config.task.head_dropout={task.head_dropout}: must be at least 0 and below 1"
        )
