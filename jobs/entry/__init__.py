"""What all commands share: options, exit codes, signals, logs, directories of this user, versions of Spark and Java."""
