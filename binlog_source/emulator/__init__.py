"""An emulated TiDB for demo, tests and benchmarks: transactions, DDL, a workload, recorded cases and faults. Not part of the product."""
