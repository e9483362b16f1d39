"""The pre-training harness: config, model, batches, training loop."""
