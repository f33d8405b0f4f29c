"""The device mesh and its table of axes; runs on several hosts."""
