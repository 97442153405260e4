"""Partitions that hold other rows on the target than upstream: what is done to one of them there is not what was done upstream.

Promises: pure. BY KEY every server but TiDB has a hash function of its own; LINEAR, which a table may have from elsewhere, spreads rows otherwise than
TiDB, which knows the word and passes over it. Of the statements on single partitions those are named that take rows away or swap them.
"""

from schemas.history import JobType
from schemas.tableinfo import PartitionType
from sinks.mysql.ddl.text import Subject

_ON_ROWS = frozenset({JobType.TRUNCATE_PARTITION, JobType.EXCHANGE_PARTITION})


def on_single_partitions(subject: Subject) -> bool:
    """The job takes rows of some partitions away and leaves others."""
    old, new = subject.old, subject.info
    if subject.job.type not in _ON_ROWS or old is None or new is None:
        return False
    left = {p.id for p in new.partitions}
    return subject.job.type == JobType.EXCHANGE_PARTITION or any(p.id in left for p in old.info.partitions)


def holds_other_rows(subject: Subject, method: str) -> str:
    """Why partitions of the job's table hold other rows than upstream; empty when they hold the same.

    ``method``: the target's ``PARTITION_METHOD`` of the table.
    """
    old, words = subject.old, method.upper().split()
    if old is None:
        return ""
    if old.info.partition_type == PartitionType.KEY or "KEY" in words:
        how = "BY KEY, for which the target has another hash function than TiDB"
    elif "LINEAR" in words:
        how = f"BY {method.upper()} on the target and by plain HASH in TiDB"
    else:
        return ""
    return (
        f"{old.schema}.{old.name} is partitioned {how}, so a partition there holds other rows than the upstream's of that name; "
        "bring the target's rows by hand to what upstream made of them and skip the DDL"
    )
