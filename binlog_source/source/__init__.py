"""The Spark source: offsets, batch planning, and the PullBinlogs calls that read a batch."""
