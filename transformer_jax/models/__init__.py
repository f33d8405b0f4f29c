"""One family a file, composition only."""
