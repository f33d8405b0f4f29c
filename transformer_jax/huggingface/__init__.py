"""Reads and writes Hugging Face checkpoints.

`family` is the base of all architectures, translates the keys of fine-tuned heads, and finds the
architectures: each file of transformer_jax/families may define a list `ARCHITECTURES`.
`encoder_decoder` is the base of those that write texts. `tensors` translates the keys of a model,
and moves the weights by a table of their names. `peft` reads and writes adapters apart from their
model.
"""
