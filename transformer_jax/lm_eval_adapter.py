"""Evaluates a run with EleutherAI's lm-evaluation-harness.

python -m transformer_jax.lm_eval_adapter --workdir=DIR --tasks=lambada_openai,piqa

It needs the extra `lm_eval`, and prints one JSON object. Flags such as --config.decode.batch=16 and
--config.mesh.fsdp=8 apply to this call only. Importing this module registers the model
"transformer_jax", with the arguments workdir and step, in the harness.
"""

import json
import pathlib
from collections.abc import Iterator, Sequence

from absl import flags

from transformer_jax import cli
from transformer_jax.config import UserError
from transformer_jax.pictures.progress import Bar, say, track

try:
    import lm_eval
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ImportError:
    # Without the harness the module can still be imported, so that --help works and `main` can name
    # the extra to install.
    lm_eval = None
    LM = object

    def register_model(name):
        return lambda cls: cls


@register_model("transformer_jax")
class WorkdirLM(LM):
    """The language model of a run, with the interface of lm_eval.api.model.LM.

    Each method takes requests, whose arguments are in `args`, and returns the responses in order.
    The harness also passes a batch size and a device, but the run's config is used instead. Models
    that are not causal score texts as `task.log_probability` does, and generate none.
    """

    def __init__(
        self, workdir: str, step: str = "best", overrides: Sequence[tuple[str, str]] = (), **_
    ):
        from transformer_jax.inference.log_probabilities import TextScores
        from transformer_jax.runs.open import open_run

        super().__init__()
        self.task, self.params = open_run(workdir, step, overrides)
        if not isinstance(self.task, TextScores):
            raise UserError(
                f"--workdir={workdir}: its task is {self.task.config.task.name}: must be a "
                "language model"
            )

    def loglikelihood(self, requests) -> list[tuple[float, bool]]:
        """Returns (log P(continuation | context), whether greedy decoding would return it)."""
        pairs = [request.args for request in requests]
        likelihoods = self.task.log_likelihoods(self.params, pairs)
        likelihoods = track(likelihoods, "comparing continuations", len(pairs))
        return [(likelihood.log_prob, likelihood.greedy) for likelihood in likelihoods]

    def loglikelihood_rolling(self, requests) -> list[float]:
        """Returns log P(text) of each text, which a causal model reads in windows."""
        texts = [request.args[0] for request in requests]
        scores = self.task.log_probability(self.params, texts)
        return [score.log_prob for score in track(scores, "reading", len(texts))]

    def generate_until(self, requests) -> list[str]:
        """Returns the completion of each context. Raises UserError unless the model is causal."""
        if self.task.model.kind != "causal":
            raise UserError(
                f"--tasks: one of them asks for completions, which a run of config.task.name="
                f"{self.task.config.task.name!r} does not write; take tasks of output_type "
                "multiple_choice or loglikelihood"
            )
        groups = {}  # indices of the requests with the same settings, which are completed together
        for number, request in enumerate(requests):
            key = json.dumps(request.args[1], sort_keys=True)
            groups.setdefault(key, []).append(number)
        completions = [""] * len(requests)
        with Bar("completing", len(requests)) as bar:
            for numbers in groups.values():
                contexts = [requests[number].args[0] for number in numbers]
                settings = requests[numbers[0]].args[1]
                for number, text in zip(numbers, self._complete(contexts, **settings)):
                    completions[number] = text
                    bar.advance()
        return completions

    def _complete(
        self,
        contexts: list[str],
        *,
        until=(),
        max_gen_toks=256,
        max_new_tokens=None,
        do_sample=None,
        temperature=0.0,
        top_k=0,
        top_p=1.0,
        **ignored,
    ) -> Iterator[str]:
        """Yields the completion of each context. Settings have the harness's names and defaults.

        A context that leaves too little room for the completion is truncated on the left.
        """
        from transformer_jax.inference.generation import Sampling

        if ignored:
            say(f"these generation settings are ignored: {', '.join(ignored)}")
        max_length = self.task.model.window
        max_tokens = max_new_tokens or max_gen_toks
        if max_tokens >= max_length:
            say(
                f"completions end after {max_length // 2} tokens: the task asks for {max_tokens}, "
                f"and the model takes {max_length}"
            )
            max_tokens = max_length // 2
        # do_sample=false means the likeliest token, whatever temperature a task gives beside it.
        sampling = Sampling(
            temperature=0.0 if do_sample is False else temperature, top_k=top_k, top_p=top_p
        )
        # An empty stop string would end every text at once.
        stop = [text for text in ([until] if isinstance(until, str) else until) if text]
        # The special tokens that the task puts in front of a text are subtracted, because they take
        # room, too.
        num_prefix = len(self.task.with_start([0])) - 1
        room = max_length - max_tokens - num_prefix
        prompts = [last_tokens(context, room, self.task.tokenizer) for context in contexts]
        continuations = self.task.generate(
            self.params, prompts, max_tokens=max_tokens, how=sampling, stop=stop, window="refuse"
        )
        return (continuation.text for continuation in continuations)


def last_tokens(text: str, count: int, tokenizer) -> str:
    """Returns the end of the text, with at most `count` tokens."""
    while len(ids := tokenizer.encode([text])[0]) > count:
        # A loop, because encoding the rest again may give more tokens. A cut between the bytes of a
        # character decodes to replacement characters, which are no part of the text.
        text = tokenizer.decode([ids[-count:]])[0].lstrip("\ufffd")
    return text


def define_flags() -> None:
    cli.define_workdir()
    cli.define_step()
    flags.DEFINE_list("tasks", [], "Tasks or groups of the harness, or YAML files of tasks.")
    flags.DEFINE_string("include_path", None, "Folder with additional tasks.")
    flags.DEFINE_integer(
        "num_fewshot",
        None,
        "Number of examples in front of each item; default: as set by the task.",
        lower_bound=0,
    )
    flags.DEFINE_integer("limit", None, "Maximum number of items of each task.", lower_bound=1)


def main() -> None:
    options = cli.FLAGS
    if lm_eval is None:
        raise UserError("lm-evaluation-harness is not installed: pip install -e '.[lm_eval]'")
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=options.include_path)
    _check_tasks(options.tasks, manager, options.include_path)
    model = WorkdirLM(options.workdir, options.step, cli.overrides(allowed=("decode.", "mesh.")))
    evaluation = lm_eval.simple_evaluate(
        model,
        tasks=options.tasks,
        num_fewshot=options.num_fewshot,
        limit=options.limit,
        task_manager=manager,
        log_samples=False,
    )
    report = {
        "workdir": options.workdir,
        "step": options.step,
        "lm_eval": lm_eval.__version__,
    }
    for key in ("results", "versions", "n-shot", "n-samples"):
        report[key] = evaluation[key]
    print(json.dumps(report))


def _check_tasks(tasks: list[str], manager, include_path: str | None) -> None:
    """Raises UserError for a task that is neither known to the harness nor a file."""
    if not tasks:
        raise UserError(
            "--tasks is missing: name tasks or groups of the harness, or YAML files of tasks"
        )
    for task in tasks:
        if task not in manager.all_tasks and not pathlib.Path(task).is_file():
            folders = f" or in --include_path={include_path}" if include_path else ""
            raise UserError(
                f"--tasks={task}: no task {task!r} in the harness{folders}, and no such file"
            )


if __name__ == "__main__":
    cli.run(main, define_flags)
