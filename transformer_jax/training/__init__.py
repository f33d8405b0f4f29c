"""The trainer, its step, state, optimizer, checkpoints and reports. It knows no model."""
