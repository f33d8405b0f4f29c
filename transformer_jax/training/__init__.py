"""The trainer with its step, state, optimizer, checkpoints and reports, which knows no model."""
