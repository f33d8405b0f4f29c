"""`prepare` with parts of BYTES: python -m tests.prepare_program BYTES FLAGS..."""

import runpy
import sys

from transformer_jax.data.sources import text_files

text_files.PART_BYTES = int(sys.argv.pop(1))
runpy.run_module("transformer_jax.prepare", run_name="__main__")
