"""DDLs on partitions that the target's table does not have: what happens to its rows instead. [db]

A table may be partitioned upstream but not, or differently, at the target: if a server refuses the partition clause, the table is created without it, and a
loss says so (``sinks.mysql.ddl.derive``).

    DROP, TRUNCATE PARTITION                  the partitions' rows are deleted, if the partitions' bounds say which rows these are
    ADD, REORGANIZE, PARTITION BY, REMOVE     nothing: no row changes, and the table stays without partitions

Promises: reads only.
"""

from dataclasses import dataclass

from pyspark_tidb_binlog.schemas.ddl_jobs import JobEffect
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.history import JobType
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import quoted
from pyspark_tidb_binlog.sinks.mysql.ddl.partition_bounds import rows_of
from pyspark_tidb_binlog.sinks.mysql.ddl.snapshots import column_names, partition_names
from pyspark_tidb_binlog.sinks.mysql.ddl.text import Subject
from pyspark_tidb_binlog.sinks.mysql.target import Target

_CHUNK = 20_000
"""Rows of one DELETE, each a transaction: a partition may have more than one transaction can hold."""
_ON_ROWS = frozenset({JobEffect.DROPS_PARTITION, JobEffect.EMPTIES_PARTITION})
_ON_STRUCTURE = frozenset({JobEffect.ADDS_PARTITION, JobEffect.DIVIDES})
_CANNOT = frozenset({1064, 1235, *range(1479, 1518), *range(1562, 1578), *range(1652, 1661)})
"""A clause that the server cannot read, or partitions that it does not make so; not a lack of rights or of space."""


@dataclass(frozen=True, slots=True)
class Instead:
    """What replaces a refused DDL: either ``delete`` or ``why_not``, or neither if nothing is to be done."""

    delete: str = ""
    """A DELETE, to be repeated until it finds fewer than ``most`` rows."""
    why_not: str = ""
    """Why the rows cannot be identified, and what to do."""
    loss: str = ""
    """What the target lacks from here on."""
    most: int = _CHUNK


def instead_of(session: Target, subject: Subject, refused: ApplyError) -> Instead | None:
    """What takes the place of the job, which the target has refused; None if it is not on partitions that its table lacks."""
    old, effect = subject.old, subject.job.kind.effect
    if old is None or effect not in _ON_ROWS | _ON_STRUCTURE or not column_names(session, old.schema, old.name):
        return None
    there = {name.lower() for name in partition_names(session, old.schema, old.name)}
    if effect in _ON_STRUCTURE:
        able = subject.job.type == JobType.ALTER_PARTITIONING and refused.errno not in _CANNOT
        return None if there or able else Instead(loss=_loss(subject))
    names = _emptied(subject)
    if not names or all(name.lower() in there for name in names):
        return None
    condition = rows_of(old.info, names)
    if condition:
        return Instead(delete=f"DELETE FROM {quoted(old.schema, old.name)} WHERE {condition} LIMIT {_CHUNK}")
    return Instead(
        why_not=(
            f"the target's table lacks some of the partitions {', '.join(names)}, and their bounds do not say exactly which rows are in them. Delete "
            f"these rows there by hand and skip the DDL. Or skip the DDL and copy the table again with --bootstrap {old.schema}.{old.name}"
        )
    )


def gone_partitions(subject: Subject) -> tuple[str, ...]:
    """The names of the partitions that the job drops."""
    old, left = subject.old, {p.name.lower() for p in subject.info.partitions} if subject.info else set()
    return tuple(p.name for p in old.info.partitions if p.name.lower() not in left) if old else ()


def _emptied(subject: Subject) -> tuple[str, ...]:
    """The partitions whose rows the job removes."""
    if subject.job.type == JobType.DROP_PARTITION:
        return gone_partitions(subject)
    ids = {p.id for p in subject.info.partitions} if subject.info else set()
    return tuple(p.name for p in subject.old.info.partitions if p.id not in ids) if subject.old else ()


def _loss(subject: Subject) -> str:
    return (
        ""
        if subject.job.type == JobType.REMOVE_PARTITIONING
        else f"{subject.label}: {subject.job.type_name} left out, because the target's table has no partitions"
    )
