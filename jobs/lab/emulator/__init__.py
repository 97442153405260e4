"""An emulated TiDB for demo, tests and benchmarks: transactions, DDL, a workload and recorded cases. Not part of the product."""
