"""Generated and built-in corpora: texts that `config.data.corpus` names, and `sources`."""
