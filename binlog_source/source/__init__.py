"""The Spark source: offsets, what the next batch takes, and the pulls that read it."""
