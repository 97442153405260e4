"""A TiDB for demo, tests and benchmarks: transactions, DDL, a workload, recorded cases and faults. Nothing of the product needs it."""
