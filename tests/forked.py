"""A forked process becomes a program. It imports no module of the tests but this one, so that a
program has imported all that it needs, as for a user, and nothing checks its annotations.
"""

import os
import runpy
import sys


def become(program, arguments, env, streams, current_folder):
    """Runs a program of the package with these files as stdin, stdout and stderr."""
    os.chdir(current_folder)
    os.environ.clear()
    os.environ.update(env)
    for number, name in enumerate(streams):
        os.dup2(os.open(name, os.O_RDWR), number)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, encoding="utf-8", closefd=False) for number, mode in enumerate("rww")
    )
    if count := env.get("JAX_NUM_CPU_DEVICES"):  # the forked process has imported jax
        import jax

        jax.config.update("jax_num_cpu_devices", int(count))
    if context := env.get("SUITE_CONTEXT"):  # benchmarks/suite.py measures the coverage
        from coverage import Coverage

        if running := Coverage.current():
            running.switch_context(context)
    sys.argv = [program, *arguments]
    runpy.run_module(f"transformer_jax.{program}", run_name="__main__", alter_sys=True)
