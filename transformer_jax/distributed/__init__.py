"""The device mesh, the table of logical axes, and runs on several hosts."""
