"""Delta tables in addition to the target: checkpoints and findings."""
