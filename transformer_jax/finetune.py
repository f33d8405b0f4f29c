"""Fine-tunes a pre-trained run: python -m transformer_jax.finetune
--config=configs/finetune/glue.py:sst2 --config.init_from=DIR --workdir=DIR2

The model is taken from the run or converted checkpoint in init_from; flags such as
--config.model.dropout=0.2 change it. With --seeds=3, it trains three runs in DIR2/seed-0 and so on,
and prints the mean and the standard deviation of their final scores as one JSON object.

With --tasks=cola,mrpc or --tasks=all, it fine-tunes the run on several tasks of one config file, in
DIR2/cola and so on, and prints one table, and one JSON object. "{task}" in a value stands for the
name of the task: --config.data.train_files='glue/{task}/train.tsv'. The tasks are the keys of TASKS
in the file, and its argument begins with one of them. Tasks that are complete are not repeated.
"""

import json
import statistics

from absl import flags

from transformer_jax import cli
from transformer_jax.config import UserError
from transformer_jax.train import check_folder, check_together, spread, train_seeds, updates
from transformer_jax.train import main as train_one


def define_flags() -> None:
    cli.define_training()
    flags.DEFINE_string("tasks", "", "Tasks of the config to fine-tune on, in turn; all: each one.")


def main() -> None:
    if cli.FLAGS.tasks:
        return _train_tasks()
    _check(cli.FLAGS.config)
    train_one()


def _check(path: str) -> None:
    """Raises UserError if a config does not fine-tune."""
    from transformer_jax import config as configs
    from transformer_jax.runs.spec import takes_model

    config = configs.read(path)
    if not takes_model(config):
        raise UserError(
            f"--config={path}: config.task.name={config.task.name!r} is not a fine-tuning task"
        )


def _train_tasks() -> None:
    """Fine-tunes on each of --tasks, and prints the scores of all."""
    from transformer_jax import config as configs
    from transformer_jax.pictures.progress import say
    from transformer_jax.runs import spec
    from transformer_jax.runs.train import train
    from transformer_jax.storage import buckets

    if cli.profile():
        raise UserError("--profile is for one run, without --tasks")
    check_together()
    file, _, rest = cli.FLAGS.config.partition(":")
    folder = buckets.folder_of_run(cli.FLAGS.workdir)
    if spec.exists(folder):
        raise UserError(f"--workdir={folder}: holds a single run; --tasks needs another folder")
    runs = []
    # All tasks are checked before the first one is trained, which may take hours.
    for name in _names(file):
        path = f"{file}:{name},{rest}" if rest else f"{file}:{name}"
        _check(path)
        check_folder(folder / name)
        overrides = [
            (key, value.replace("{task}", name) if isinstance(value, str) else value)
            for key, value in cli.overrides()
        ]
        config = spec.resolve(path, overrides=overrides).config
        _check_measured(config, path)
        _check_files(config)
        if cli.FLAGS.budget:
            overrides.append(("train.num_steps", updates(path, overrides)))
        runs.append((name, path, overrides, config.checkpoint.best_metric))
    scores = {}
    for number, (name, path, overrides, _) in enumerate(runs, 1):
        say(f"task {name} ({number} of {len(runs)})")
        if cli.FLAGS.seeds:
            scores[name] = train_seeds(configs.read(path), folder / name, overrides)
        else:
            found = train(path, folder / name, overrides=overrides)
            scores[name] = {key: spread([value]) for key, value in found.items()}
    measures = {name: measure for name, _, _, measure in runs}
    for name, measure in measures.items():
        if measure not in scores[name]:
            raise UserError(
                f"{name}: config.checkpoint.best_metric={measure}: not measured; there are: "
                f"{', '.join(scores[name])}"
            )
    main_scores = {name: scores[name][measure]["mean"] for name, measure in measures.items()}
    mean = statistics.fmean(main_scores.values())
    say("\n".join(_table(scores, measures, mean)))
    content = {"workdir": str(folder), "measures": measures, "tasks": scores, "mean": mean}
    print(json.dumps(content))


def _names(file: str) -> list[str]:
    """Returns the names of the tasks. Raises UserError for those that the config does not have."""
    from transformer_jax import config as configs

    path = configs.config_file(file)
    known = getattr(configs.load_module(path), "TASKS", None)
    if not known:
        raise UserError(f"--tasks: {path} has no TASKS = {{name: ...}}; name one task by --config")
    if cli.FLAGS.tasks == "all":
        return [*known]
    names = cli.FLAGS.tasks.split(",")
    for name in names:
        try:
            configs.choice(name, known)
        except UserError as error:
            raise UserError(f"--tasks: {error}") from None
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"--tasks: {twice[0]} occurs twice")
    return names


def _check_measured(config, path: str) -> None:
    """Raises UserError if the score of the table can't be measured."""
    data = config.data
    if not config.checkpoint.best_metric:
        raise UserError(f"{path}: config.checkpoint.best_metric is missing: the score to be shown")
    if not (data.valid_files or (data.tfds_name and data.valid_split)):
        raise UserError(f"{path}: config.data.valid_files is missing: the table shows its scores")


def _check_files(config) -> None:
    """Raises UserError if a file of the config is missing."""
    from transformer_jax.data.sources import text_files

    for split in ("train", "valid"):
        if files := config.data[f"{split}_files"]:
            text_files.matching_files(f"config.data.{split}_files", files)


def _table(scores: dict[str, dict], measures: dict[str, str], mean: float) -> list[str]:
    """Returns the lines of a table of all tasks, with the spread over seeds where there are any."""
    width = max(map(len, [*scores, "mean"]))
    lines = [f"{'task':{width}}  {'score':>8}  {'seeds':>5}  measure"]
    for name, found in scores.items():
        score = found[measures[name]]
        several = len(score["values"]) > 1
        deviation = f" (standard deviation {score['deviation']:.4f})" if several else ""
        line = f"{name:{width}}  {score['mean']:8.4f}  {len(score['values']):5}  {measures[name]}"
        lines.append(line + deviation)
    return [*lines, f"{'mean':{width}}  {mean:8.4f}"]


if __name__ == "__main__":
    cli.run(main, define_flags)
