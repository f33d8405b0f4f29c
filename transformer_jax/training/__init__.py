"""The training loop, step, state, batches, optimizer, checkpoints and reports. It knows no model."""
