"""Where text comes from: text files, pairs, tables, TFDS sets, built-in corpora."""
