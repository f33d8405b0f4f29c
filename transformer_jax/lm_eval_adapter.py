"""EleutherAI's lm-evaluation-harness on a run: python -m transformer_jax.lm_eval_adapter
--workdir=DIR --tasks=lambada_openai,piqa

Needs the extra `lm_eval`; prints one JSON object. --config.decode.batch=16 and the like hold for
this call. With this module imported, the harness knows the model "transformer_jax" with the
arguments workdir and step.
"""

import json
import pathlib
from collections.abc import Iterator, Sequence

from absl import flags

from transformer_jax.cli import flags as cli
from transformer_jax.cli import process
from transformer_jax.config import UserError
from transformer_jax.pictures.progress import Bar, say, track

try:
    import lm_eval
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ImportError:  # `main` says so
    lm_eval, LM, register_model = None, object, lambda name: lambda cls: cls


@register_model("transformer_jax")
class WorkdirLM(LM):
    """A run of a causal language model as the harness sees a model: requests with `args` in,
    answers in order out. See lm_eval.api.model.LM.

    The harness passes its own batch size and device, too: here the config's are used.
    """

    def __init__(
        self, workdir: str, step: str = "best", overrides: Sequence[tuple[str, str]] = (), **_
    ):
        from transformer_jax.runs.open import open_run

        super().__init__()
        self.task, self.params = open_run(workdir, step, overrides)
        if not hasattr(self.task, "log_likelihoods"):
            raise UserError(
                f"--workdir={workdir}: a {self.task.config.task.name} run, not a language model"
            )

    def loglikelihood(self, requests) -> list[tuple[float, bool]]:
        found = self.task.log_likelihoods(self.params, [request.args for request in requests])
        return [
            (each.log_prob, each.greedy)
            for each in track(found, "comparing continuations", len(requests))
        ]

    def loglikelihood_rolling(self, requests) -> list[float]:
        tokenizer = self.task.tokenizer
        texts = tokenizer.encode([request.args[0] for request in requests])
        windows = [
            (number, window)
            for number, ids in enumerate(texts)
            for window in rolling_windows(ids, self.task.model.max_length, tokenizer.eos_id)
        ]
        sums, size = [0.0] * len(texts), 16 * self.task.config.decode.batch
        with Bar("reading (windows)", len(windows)) as bar:
            for start in range(0, len(windows), size):
                numbers, chosen = zip(*windows[start : start + size])
                for number, found in zip(
                    numbers, self.task.token_log_likelihoods(self.params, chosen)
                ):
                    sums[number] += found.log_prob
                bar.advance(len(chosen))
        return sums

    def generate_until(self, requests) -> list[str]:
        groups, texts = {}, [""] * len(requests)
        for number, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(number)
        with Bar("completing", len(requests)) as bar:
            for numbers in groups.values():
                contexts, settings = (
                    [requests[number].args[0] for number in numbers],
                    requests[numbers[0]].args[1],
                )
                for number, text in zip(numbers, self._completions(contexts, **settings)):
                    texts[number] = text
                    bar.advance()
        return texts

    def _completions(
        self,
        contexts,
        until=(),
        max_gen_toks=256,
        max_new_tokens=None,
        do_sample=None,
        temperature=0.0,
        top_k=0,
        top_p=1.0,
        **ignored,
    ) -> Iterator[str]:
        """With the harness's names and defaults; a context that leaves no room for the completion
        loses its beginning.
        """
        from transformer_jax.inference.sampling import Sampling

        if ignored:
            say(f"generation settings not known here are ignored: {', '.join(ignored)}")
        longest, max_gen_toks = self.task.model.max_length, max_new_tokens or max_gen_toks
        if max_gen_toks >= longest:
            say(
                f"completions end after {longest // 2} tokens: the task's {max_gen_toks} are more than the model takes ({longest})"
            )
            max_gen_toks = longest // 2
        how = Sampling(
            temperature=0.0 if do_sample is False else temperature, top_k=top_k, top_p=top_p
        )
        stop = [text for text in ([until] if isinstance(until, str) else until) if text]
        # what stands before a text takes room, too
        room = longest - max_gen_toks - (len(self.task.with_start([0])) - 1)
        prompts = [last_tokens(context, room, self.task.tokenizer) for context in contexts]
        settings = dict(max_tokens=max_gen_toks, how=how, stop=stop, window="refuse")
        found = self.task.generate(self.params, prompts, **settings)
        return (continuation.text for continuation in found)


def rolling_windows(
    ids: list[int], length: int, prefix: int
) -> Iterator[tuple[list[int], list[int]]]:
    """(context, continuation) by which every token is predicted once, the first from `prefix`:
    disjoint windows, the last filled up with context.
    """
    ids = [prefix, *ids]
    for start in range(1, len(ids), length):
        end = min(start + length, len(ids))
        yield ids[max(end - length - 1, 0) : start], ids[start:end]


def last_tokens(text: str, count: int, tokenizer) -> str:
    """The end of the text that has at most `count` tokens."""
    while len(ids := tokenizer.encode([text])[0]) > count:
        text = tokenizer.decode([ids[-count:]])[0].lstrip("\ufffd")  # no half of a character
    return text


def define_flags() -> None:
    cli.define_workdir()
    cli.define_step()
    flags.DEFINE_list("tasks", [], "Tasks or groups of the harness, or YAML files of tasks.")
    flags.DEFINE_string("include_path", None, "Folder of further tasks.")
    flags.DEFINE_integer(
        "num_fewshot",
        None,
        "Examples before each item; without it the task's own number.",
        lower_bound=0,
    )
    flags.DEFINE_integer("limit", None, "Only so many items of each task.", lower_bound=1)


def main() -> None:
    options = cli.FLAGS
    if lm_eval is None:
        raise UserError("lm-evaluation-harness is not installed: pip install -e '.[lm_eval]'")
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=options.include_path)
    if not options.tasks:
        raise UserError(
            "--tasks=... is missing: tasks or groups of the harness, or YAML files of tasks"
        )
    if unknown := [
        name
        for name in options.tasks
        if name not in manager.all_tasks and not pathlib.Path(name).is_file()
    ]:
        raise UserError(
            f"--tasks: no task {unknown[0]!r} in the harness{f' or in {options.include_path}' if options.include_path else ''}, and no such file"
        )
    model = WorkdirLM(options.workdir, options.step, cli.overrides(allowed=("decode.",)))
    found = lm_eval.simple_evaluate(
        model,
        tasks=options.tasks,
        num_fewshot=options.num_fewshot,
        limit=options.limit,
        task_manager=manager,
        log_samples=False,
    )
    kept = {key: found[key] for key in ("results", "versions", "n-shot", "n-samples")}
    print(
        json.dumps(
            {
                "workdir": options.workdir,
                "step": options.step,
                "lm_eval": lm_eval.__version__,
                **kept,
            }
        )
    )


if __name__ == "__main__":
    process.run(main, define_flags)
