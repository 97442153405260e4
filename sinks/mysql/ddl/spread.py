"""Detects partitions that hold other rows on the target than upstream: a statement on a single partition would affect other rows.

Promises: pure. For KEY partitions, other servers have another hash function than TiDB. LINEAR, which the target's table may have if it was
not created by the Drainer, distributes rows differently from TiDB, which parses the word but ignores it. Only statements that remove or
exchange the rows of single partitions are considered.
"""

from pyspark_tidb_binlog.schemas.ddl_jobs import JobEffect
from pyspark_tidb_binlog.schemas.history import JobType
from pyspark_tidb_binlog.schemas.tableinfo import PartitionType
from pyspark_tidb_binlog.sinks.mysql.ddl.text import Subject

_ON_ROWS = frozenset({JobEffect.EMPTIES_PARTITION, JobEffect.EXCHANGES})


def on_single_partitions(subject: Subject) -> bool:
    """Whether the job removes or exchanges the rows of some partitions only."""
    old, new = subject.old, subject.info
    if subject.job.kind.effect not in _ON_ROWS or old is None or new is None:
        return False
    left = {p.id for p in new.partitions}
    return subject.job.type == JobType.EXCHANGE_PARTITION or any(p.id in left for p in old.info.partitions)


def holds_other_rows(subject: Subject, method: str) -> str:
    """Why partitions of the job's table hold other rows than upstream; empty if they hold the same.

    ``method``: the table's ``PARTITION_METHOD`` on the target.
    """
    old, words = subject.old, method.upper().split()
    if old is None:
        return ""
    if old.info.partition_type == PartitionType.KEY or "KEY" in words:
        how = "BY KEY, with another hash function at the target than in TiDB"
    elif "LINEAR" in words:
        how = f"BY {method.upper()} on the target and by plain HASH in TiDB"
    else:
        return ""
    return (
        f"{old.schema}.{old.name} is partitioned {how}, so a partition holds other rows than the upstream's partition of the same name. "
        "Apply the effect of the DDL to the target's rows by hand, then skip the DDL"
    )
