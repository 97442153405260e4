"""What only demo, playground, rehearse, tests and benchmarks need: an emulated TiDB, a private MariaDB, free ports, lag. Production needs none of it."""
