"""Registry and oracle for a cluster without PD: what a client of `spark.registry` speaks to in demos, tests and benchmarks."""
