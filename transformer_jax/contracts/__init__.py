"""The contracts that a model family, a task and a source of records implement."""
