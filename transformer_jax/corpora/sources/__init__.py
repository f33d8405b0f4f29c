"""Sources of generated records. `config.source.name` names the file."""
