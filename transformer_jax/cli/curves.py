"""The picture of `inspect` with the learning curves of runs."""

from transformer_jax.config import UserError


def curves(options):
    """Returns the figure of the learning curves of one or more runs."""
    from transformer_jax import pictures

    if not options.workdir:
        raise UserError("--workdir=... is missing: folder of a run; it may be repeated")
    runs = {}
    for folder in options.workdir:
        name = folder.rstrip("/").rpartition("/")[2] if len(options.workdir) > 1 else ""
        runs[name] = _metrics(folder, options)
    if len(runs) < len(options.workdir):
        raise UserError(
            "--workdir: two runs of the same name; their folders must differ in the last part"
        )
    # The legends name several runs.
    title = options.workdir[0] if len(options.workdir) == 1 else ""
    panels = {name: (name,) for name in options.metrics}
    return pictures.curves(runs, panels, options.against, title)


def _metrics(folder: str, options) -> list[dict]:
    """Returns the lines of a run's metrics.jsonl, which must have the metrics asked for."""
    from transformer_jax.runs import record
    from transformer_jax.storage import buckets

    path = buckets.folder_of_run(folder) / "metrics.jsonl"
    if not path.is_file():
        raise UserError(f"--workdir={folder}: no metrics.jsonl here")
    lines = record.metrics(folder)
    known = sorted({name for line in lines for name in line})
    for flag, name in (
        ("against", options.against),
        *(("metrics", name) for name in options.metrics),
    ):
        if name not in known:
            raise UserError(f"--{flag}={name}: not in {path}; there are: {', '.join(known)}")
    return lines
