"""Sources of records that are not text. `config.source.name` is the name of a file here."""
