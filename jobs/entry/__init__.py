"""What every command's line has in common: options, errors, exit codes, signals, logs, versions."""
