"""Evaluates a run, and prints one JSON object: python -m transformer_jax.evaluate --workdir=DIR [--set=test]

--config.decode.beam=1, --config.data.test_source=FILE and the like hold for this call.
"""
import json

from absl import flags

from transformer_jax import cli

cli.define_workdir()
cli.define_step()
flags.DEFINE_enum("set", "valid", ["valid", "test"], "Which text.")


def main() -> None:
    from transformer_jax import workdir

    options = cli.FLAGS
    task, params = workdir.open_run(options.workdir, options.step, cli.overrides(allowed=("decode.", "data.valid_", "data.test_", "data.tfds_dir")))
    print(json.dumps({"workdir": options.workdir, "step": options.step, "set": options.set, **task.evaluate(params, options.set)}))


if __name__ == "__main__":
    cli.run(main)
