"""Reads and writes Hugging Face checkpoints.

`family` has the base class of all architectures and the keys of fine-tuned heads. It also finds the
architectures: each file of transformer_jax/families may define a list `ARCHITECTURES`.
`encoder_decoder` has the base class of encoder-decoders that generate text. `tensors` translates
the keys of a model's config, and moves the weights according to a table of their names. `peft`
reads and writes adapters separately from their model.
"""
