"""Partitions of a table: their SQL, and what a DDL on them does at a target whose partitions are not the upstream's. Pure.

A table may be partitioned upstream but not, or differently, at the target: if a server refuses the partitions, the table is created without them, and a loss says so.

    DROP, TRUNCATE PARTITION                  the partitions' rows are deleted, if the partitions' bounds say which rows these are
    ADD, REORGANIZE, PARTITION BY, REMOVE     nothing: no row changes, and the table stays without partitions

The rows of some partitions are a condition (``rows_of``) over a whole number (RANGE, LIST, and their COLUMNS), a DATE or a DATETIME (COLUMNS). There is none for
anything else: a hash, several columns, an expression, texts (their order depends on the collation), a partition of all other values. NULL is in the first
partition of RANGE, and in LIST where it is listed.

For KEY partitions, other servers have another hash function than TiDB. LINEAR, which a table may have that the Drainer has not made, distributes rows otherwise than
TiDB, which parses the word and ignores it. After a REORGANIZE that was skipped bounds are others. So what removes or exchanges the rows of single partitions would take
other rows (``scattered``).
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pyspark_tidb_binlog.schemas.arrowtypes import INTEGERS
from pyspark_tidb_binlog.schemas.ddl_jobs import JobEffect, JobType, RowsAfter
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name, quote_string, text_of, tokenize
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType, PartitionDef, PartitionType, TableInfo
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import Subject
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect, expression, plain_strings
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, table_name
from pyspark_tidb_binlog.sinks.mysql.structure import TargetTable

_ON_SINGLE = frozenset({JobEffect.DROPS_PARTITION, JobEffect.EMPTIES_PARTITION, JobEffect.EXCHANGES})
ON_PARTITIONS = _ON_SINGLE | {JobEffect.ALTERS_PARTITIONS, JobEffect.DIVIDES}
_DISTRIBUTED = (PartitionType.HASH, PartitionType.KEY)
_CHUNK = 20_000
"""Rows of one DELETE, each a transaction: a partition may have more than one transaction can hold."""
_CANNOT = frozenset({1064, 1235, *range(1479, 1518), *range(1562, 1578), *range(1652, 1661)})
"""A clause that the server cannot read, or partitions that it does not make so; not a lack of rights or of space."""
_WHOLE = re.compile(r"-?\d+")
_TIME = re.compile(r"'\d{4}-\d\d-\d\d(?: \d\d:\d\d:\d\d(?:\.\d{1,6})?)?'")
_TIMES = frozenset({ColumnType.DATE, ColumnType.NEWDATE, ColumnType.DATETIME})
_NO_LIMIT = "MAXVALUE"


def partition_by(info: TableInfo, dialect: Dialect) -> str:
    """``PARTITION BY …``; empty for a table without partitions, with some that TiDB does not use, or of a method of a later release."""
    if not info.partitions or not info.partition_enabled or info.partition_type not in set(PartitionType):
        return ""
    method, columns = PartitionType(info.partition_type), names_of(info.partition_columns)
    if method is PartitionType.KEY:
        over = f" ({columns})"
    else:
        over = f" COLUMNS ({columns})" if info.partition_columns else f" ({expression(info.partition_expr)})"
    if method in _DISTRIBUTED and [(p.name, p.comment) for p in info.partitions] == [(f"p{n}", "") for n in range(len(info.partitions))]:
        return f"PARTITION BY {method.name}{over} PARTITIONS {len(info.partitions)}"
    return f"PARTITION BY {method.name}{over} ({_definitions(info.partitions, dialect)})"


def partition_change(old: TableInfo, new: TableInfo, effect: JobEffect, dialect: Dialect) -> str:
    """Clause of ALTER TABLE for the partitions; empty if they are the same. They are told apart by their ids and names."""
    kept = {(p.id, p.name) for p in old.partitions} & {(p.id, p.name) for p in new.partitions}
    gone, come = ([p for p in parts if (p.id, p.name) not in kept] for parts in (old.partitions, new.partitions))
    if not gone and not come:
        return ""
    match effect:
        case JobEffect.DROPS_PARTITION:
            return f"DROP PARTITION {names_of([p.name for p in gone])}"
        case JobEffect.EMPTIES_PARTITION:
            return f"TRUNCATE PARTITION {names_of([p.name for p in come])}"
        case JobEffect.ALTERS_PARTITIONS if not gone:
            return f"ADD PARTITION ({_definitions(come, dialect)})"
    if not new.partitions:
        return "REMOVE PARTITIONING"
    if old.id != new.id or new.partition_type in _DISTRIBUTED:
        return partition_by(new, dialect)
    return f"REORGANIZE PARTITION {names_of([p.name for p in gone])} INTO ({_definitions(come, dialect)})"


def _definitions(partitions: Sequence[PartitionDef], dialect: Dialect) -> str:
    texts = []
    for partition in partitions:
        text = f"PARTITION {quote_name(partition.name)}"
        if partition.less_than:
            text += f" VALUES LESS THAN ({_values(partition.less_than)})"
        elif partition.in_values == (("DEFAULT",),) and dialect.flavour is Flavour.MARIADB:
            text += " DEFAULT"
        elif partition.in_values:
            listed = (f"({_values(v)})" if len(v) > 1 else _values(v) for v in partition.in_values)
            text += f" VALUES IN ({', '.join(listed)})"
        texts.append(text + (f" COMMENT = {quote_string(partition.comment)}" if partition.comment else ""))
    return ", ".join(texts)


def _values(values: Sequence[str]) -> str:
    # TiDB escapes the backslashes of bounds, but of no other expression.
    return ", ".join(text_of(plain_strings(tokenize(value), restored=False)) for value in values)


def names_of(names: Sequence[str]) -> str:
    """Return the names quoted, as a list in SQL."""
    return ", ".join(map(quote_name, names))


def scattered(subject: Subject, flavour: Flavour, table: TargetTable | None) -> str:
    """Why the job, which removes or exchanges the rows of some partitions only, would take other rows at the target; empty: it would not.

    ``table``: the target's.
    """
    old, effect = subject.old, subject.job.kind.effect
    method = table.partition_method.upper().split() if table else []
    if flavour is Flavour.TIDB or effect not in _ON_SINGLE or old is None or subject.info is None or table is None or not method:
        return ""
    taken, wanted, found = (
        emptied(subject),
        _spans({p.name: limit_of(old.info, p.name) for p in old.info.partitions}),
        _spans(table.partitions),
    )
    if effect is not JobEffect.EXCHANGES and len(taken) == len(old.info.partitions):
        return ""
    if old.info.partition_type == PartitionType.HASH:  # which has no bounds, but a number of partitions
        moved = [] if len(found) == len(wanted) else list(taken)
    else:
        moved = [n for n in taken if n.lower() in found and all(wanted[n.lower()]) and wanted[n.lower()] != found[n.lower()]]
    if PartitionType.__members__.get(method[0]) != old.info.partition_type or {"KEY", "LINEAR"} & set(method):
        how = f"partitioned BY {' '.join(method)} at the target, which distributes rows otherwise than upstream"
    elif moved:
        how = f"partitioned with other bounds at the target ({', '.join(moved)})"
    else:
        return ""
    return (
        f"{old.label} is {how}: a partition holds other rows than the upstream's partition of the same name. Apply the effect of the DDL to "
        "the target's rows by hand, then skip the DDL"
    )


def _spans(limits: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """The bounds of each partition of RANGE: the end of the one before, and its own."""
    ends = [limit.upper() for limit in limits.values()]
    return dict(zip(map(str.lower, limits), zip(["FIRST", *ends], ends, strict=False), strict=True))


@dataclass(frozen=True, slots=True)
class Instead:
    """Replacement of a refused DDL: either ``delete`` or ``why_not``, or neither if nothing is to be done."""

    delete: str = ""
    """A DELETE, to be repeated until it finds fewer than ``most`` rows."""
    why_not: str = ""
    """Why the rows cannot be identified, and what to do."""
    loss: str = ""
    """What the target lacks from here on."""
    most: int = _CHUNK


def instead_of(subject: Subject, table: TargetTable | None, refused: ApplyError) -> Instead | None:
    """Return the replacement of a job that the target has refused; None if the job is not on partitions that the target's ``table`` lacks."""
    old, effect = subject.old, subject.job.kind.effect
    takes = effect.rows is RowsAfter.PARTITIONS_GO
    if old is None or table is None or not (takes or effect in (JobEffect.ALTERS_PARTITIONS, JobEffect.DIVIDES)):
        return None
    there = {name.lower() for name in table.partitions}
    if not takes:
        able = subject.job.type == JobType.ALTER_PARTITIONING and refused.errno not in _CANNOT
        left_out = f"{subject.label}: {subject.job.type_name} left out, because the target's table has no partitions"
        return None if there or able else Instead(loss="" if subject.job.type == JobType.REMOVE_PARTITIONING else left_out)
    names = emptied(subject)
    if not names or all(name.lower() in there for name in names):
        return None
    if condition := rows_of(old.info, names):
        return Instead(delete=f"DELETE FROM {table_name(old.schema, old.name)} WHERE {condition} LIMIT {_CHUNK}")
    return Instead(
        why_not=(
            f"the target's table lacks some of the partitions {', '.join(names)}, and their bounds do not say exactly which rows are in them. Delete "
            f"these rows there by hand and skip the DDL. Or skip the DDL and copy the table again with --bootstrap {old.label}"
        )
    )


def emptied(subject: Subject) -> tuple[str, ...]:
    """The partitions whose rows the job removes or exchanges."""
    return subject.old.info.partitions_gone(subject.info) if subject.old and subject.info else ()


def rows_of(info: TableInfo, names: Collection[str]) -> str:
    """The condition for the rows in the partitions ``names`` of ``info``; empty if it cannot be told exactly."""
    column, wanted, parts, below = _column(info), {name.lower() for name in names}, list[str](), ""
    if column is None or not wanted or not wanted <= {p.name.lower() for p in info.partitions}:
        return ""
    for number, partition in enumerate(info.partitions):
        limit = partition.less_than[0] if len(partition.less_than) == 1 else ""
        if partition.name.lower() in wanted and info.partition_type == PartitionType.RANGE:
            parts.append(_between(column, below if number else None, limit))
        elif partition.name.lower() in wanted:
            parts.append(_listed(partition, column) if info.partition_type == PartitionType.LIST else "")
        below = limit
    return " OR ".join(parts) if all(parts) else ""


def limit_of(info: TableInfo, name: str) -> str:
    """The upper bound of a RANGE partition as each server shows it: a whole number, a DATE or MAXVALUE; empty for all others."""
    column = _column(info)
    if column is None or info.partition_type != PartitionType.RANGE or column.tp == ColumnType.DATETIME:
        return ""
    limits = next(p.less_than for p in info.partitions if p.name.lower() == name.lower())
    return limits[0] if len(limits) == 1 and (limits[0] == _NO_LIMIT or _is_value(limits[0], column)) else ""


def _column(info: TableInfo) -> ColumnInfo | None:
    """The one column that decides; None if it is not one alone."""
    names = list(info.partition_columns) or [t.name for t in tokenize(info.partition_expr) if not t.blank]
    column = next((c for c in info.columns if c.name.lower() == names[0].lower()), None) if len(names) == 1 else None
    return column if column is not None and (column.tp in INTEGERS or (column.tp in _TIMES and info.partition_columns)) else None


def _between(column: ColumnInfo, below: str | None, limit: str) -> str:
    """The rows of a RANGE partition; ``below``: the bound of the partition before; None: it is the first."""
    name = quote_name(column.name)
    if (below is not None and not _is_value(below, column)) or (limit != _NO_LIMIT and not _is_value(limit, column)):
        return ""
    bounds = ([] if below is None else [f"{name} >= {below}"]) + ([] if limit == _NO_LIMIT else [f"{name} < {limit}"])
    inside = " AND ".join(bounds) or f"{name} IS NOT NULL"
    return f"({inside} OR {name} IS NULL)" if below is None else f"({inside})"


def _listed(partition: PartitionDef, column: ColumnInfo) -> str:
    name = quote_name(column.name)
    values = [v[0] if len(v) == 1 else "" for v in partition.in_values]
    plain = [v for v in values if v.upper() != "NULL"]
    if not values or not all(_is_value(v, column) for v in plain):
        return ""
    parts = [f"{name} IN ({', '.join(plain)})"] if plain else []
    parts += [f"{name} IS NULL"] if len(plain) < len(values) else []
    return f"({' OR '.join(parts)})"


def _is_value(text: str, column: ColumnInfo) -> bool:
    return bool((_WHOLE if column.tp in INTEGERS else _TIME).fullmatch(text))
