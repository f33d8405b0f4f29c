"""Hugging Face's checkpoints, read and written: `tensors` moves the weights, each other file
describes a family's config and names.

A family has `architecture`, `task` (our name of it), `prefix` and `ignored` (of tensor names),
`table` (see `tensors.views`), `holds`, `to_ours` and `to_theirs` (configs); `heads` knows what
config.json says of a fine-tuned head.
"""
