"""Files of binlogs, applied to a database: a file sink's (Reparo), and a relay log while the upstream is away."""
