"""The training loop, step, state, batches, optimizer, checkpoints, reports. It knows no model."""
