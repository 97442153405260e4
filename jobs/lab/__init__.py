"""What demo, rehearse, tests and benchmarks share: a private MariaDB, free ports, table comparison, lag. Production needs none of it."""
