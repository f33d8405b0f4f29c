"""Hugging Face's checkpoints, read and written: `tensors` moves the weights, each other file describes a family's config and names.

A family has `architecture`, `prefix` and `ignored` (of tensor names), `table` (see `tensors.views`), `to_ours` and `to_theirs` (configs).
"""
