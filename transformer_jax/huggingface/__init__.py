"""Reads and writes Hugging Face checkpoints.

`tensors` moves the weights. Each of `gpt` and `bert` describes a family of architectures. `heads`
translates the keys of a fine-tuned head, `keys` those of a model.

A family has:
    architecture  the name in the list "architectures" of config.json
    task          the value of config.task.name
    table         names and layouts of the tensors, see `tensors.views`
    prefix        prefix that tensor names may lack
    ignored       endings of tensor names that are not read
    matches       whether the family can hold a run
    read_config   from the content of config.json to a run's config
    write_config  from a run's config to the content of config.json
"""
