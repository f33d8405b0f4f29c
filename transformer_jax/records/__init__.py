"""Sources of non-text records. `config.source.name` is the name of a module in this package."""
