"""Sources that read records other than text from files. `config.source.name` names the file."""
