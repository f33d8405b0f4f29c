"""Reads and writes Hugging Face checkpoints.

`family` is the base of all families of architectures, and finds them: each is a file of this
folder with a list `ARCHITECTURES`. `tensors` moves the weights, by a table of their names. `keys`
translates the keys of a model, `heads` those of a fine-tuned head. `peft` reads and writes adapters
apart from their model.
"""
