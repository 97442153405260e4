"""The file sink: binlogs as files, for Reparo."""
