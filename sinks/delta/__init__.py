"""Tables in Delta beside the target: checkpoints and findings."""
