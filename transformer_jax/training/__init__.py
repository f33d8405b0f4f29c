"""The loop, the step, state, batches, optimizer, checkpoints, reports. It knows no model."""
