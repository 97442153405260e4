"""CREATE TABLE, its foreign keys and its partitions as SQL, built from the table info; an ALTER TABLE is made of the same parts. Pure.

columns, keys        ``column_sql``; a MariaDB has no index over an expression, a loss
foreign keys         a name that TiDB has made (``fk_1``) is left to the target: there it must be unique in the database, in TiDB only in the table
CHECK constraints    left out, a loss: the upstream has checked the rows
partitions           those that the upstream has made, with the bounds that it has computed
options              charset, comment, where AUTO_INCREMENT begins; those of TiDB's storage and jobs are losses
"""

import re
from collections.abc import Iterator, Sequence

from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.ddl_jobs import JobEffect
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name, quote_string
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, ColumnFlag, ForeignKey, PartitionDef, PartitionType, ReferentialAction, TableInfo
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import Dialect, Losses, Rewritten, quoted
from pyspark_tidb_binlog.sinks.mysql.ddl.column_sql import column_definition, expression, index_definition, lacks_counter, lacks_sequence
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour

_MADE = re.compile(r"fk_\d+")
_DISTRIBUTED = (PartitionType.HASH, PartitionType.KEY)


def create_table(schema: str, info: TableInfo, dialect: Dialect, *, plain: bool = False) -> Rewritten:
    """The table; ``plain``: without what a server may refuse, which are partitions, foreign keys and indexes over expressions."""
    losses = Losses(f"{schema}.{info.name}")
    parts = [column_definition(c, info, dialect, explicit=False) for c in visible(info)]
    if info.handle_columns() and info.pk_is_handle:
        parts.append("PRIMARY KEY (" + ", ".join(quote_name(c.name) for c in info.handle_columns()) + ")")
    for index in info.indexes:
        if index.state == PUBLIC and info.over_expression(index) and (plain or dialect.flavour is Flavour.MARIADB):
            losses.add(f"expression index {index.name} left out")
        elif index.state == PUBLIC:
            parts.append(index_definition(index, dialect, info))
    for key in info.foreign_keys:
        if plain:
            losses.add(f"foreign key {key.name} left out")
        else:
            parts.append(foreign_key_definition(key, schema))
    partitions = "" if plain else partition_by(info, dialect)
    if info.partitions and not partitions:
        losses.add("partitions left out")
    for loss in left_out(info, dialect):
        losses.add(loss)
    options = " ".join(filter(None, [*_options(info, dialect), partitions]))
    return Rewritten(f"CREATE TABLE {quoted(schema, info.name)} ({', '.join(parts)}) {options}", tuple(losses.texts), by_infos=True)


def left_out(info: TableInfo, dialect: Dialect) -> Iterator[str]:
    """What no definition at the target has of a table."""
    for column in visible(info):
        if lacks_counter(column, dialect):
            yield f"column {column.name}: AUTO_INCREMENT left out"
        if lacks_sequence(column, dialect):
            yield f"column {column.name}: default from a sequence left out"
    if info.checks:
        yield "CHECK constraint left out, because the upstream has checked it"
    if info.auto_random_bits:
        yield "AUTO_RANDOM left out"
    if info.shard_row_id_bits:
        yield "SHARD_ROW_ID_BITS left out"
    if info.ttl:
        yield "TTL left out"
    if info.placement:
        yield "placement policy left out"
    if info.temp_table_type:
        yield "temporary table created as an ordinary table, which stays empty"


def charset_option(info: TableInfo, dialect: Dialect) -> str:
    """The charset of new columns."""
    found = dialect.charset(info.charset, info.collate)
    return f"DEFAULT CHARACTER SET = {found.charset} COLLATE = {found.collate}"


def counter_option(info: TableInfo, dialect: Dialect) -> str:
    """Where AUTO_INCREMENT begins; empty if nobody has said that, or no column of the target counts."""
    counts = any(c.flag & ColumnFlag.AUTO_INCREMENT and not lacks_counter(c, dialect) for c in visible(info))
    return f"AUTO_INCREMENT = {info.auto_increment}" if info.auto_increment and counts else ""


def _options(info: TableInfo, dialect: Dialect) -> list[str]:
    comment = f"COMMENT = {quote_string(info.comment)}" if info.comment else ""
    return [charset_option(info, dialect), comment, counter_option(info, dialect)]


def foreign_key_definition(key: ForeignKey, schema: str) -> str:
    """The definition of one foreign key of a table in ``schema``, for CREATE TABLE and ALTER TABLE ADD."""
    name = "" if _MADE.fullmatch(key.name) else f"CONSTRAINT {quote_name(key.name)} "
    actions = "".join(
        f" ON {what} {ReferentialAction(how).name.replace('_', ' ')}"
        for what, how in (("DELETE", key.on_delete), ("UPDATE", key.on_update))
        if how
    )
    to = quoted(key.ref_schema or schema, key.ref_table)
    return f"{name}FOREIGN KEY ({_names(key.columns)}) REFERENCES {to} ({_names(key.ref_columns)}){actions}"


def partition_by(info: TableInfo, dialect: Dialect) -> str:
    """``PARTITION BY …``; empty for a table without partitions, or with those of a method of a later release."""
    if not info.partitions or info.partition_type not in set(PartitionType):
        return ""
    method, columns = PartitionType(info.partition_type), _names(info.partition_columns)
    if method is PartitionType.KEY:
        over = f" ({columns})"
    else:
        over = f" COLUMNS ({columns})" if info.partition_columns else f" ({expression(info.partition_expr)})"
    if method in _DISTRIBUTED and [(p.name, p.comment) for p in info.partitions] == [(f"p{n}", "") for n in range(len(info.partitions))]:
        return f"PARTITION BY {method.name}{over} PARTITIONS {len(info.partitions)}"
    return f"PARTITION BY {method.name}{over} ({_definitions(info.partitions, dialect)})"


def partition_change(old: TableInfo, new: TableInfo, effect: JobEffect, dialect: Dialect) -> str:
    """What ALTER TABLE does to the partitions; empty if they are the same. They are told apart by their ids."""
    kept = {p.id for p in old.partitions} & {p.id for p in new.partitions}
    gone, come = ([p for p in parts if p.id not in kept] for parts in (old.partitions, new.partitions))
    if not gone and not come:
        return ""
    match effect:
        case JobEffect.DROPS_PARTITION:
            return f"DROP PARTITION {_names([p.name for p in gone])}"
        case JobEffect.EMPTIES_PARTITION:
            return f"TRUNCATE PARTITION {_names([p.name for p in come])}"
        case JobEffect.ADDS_PARTITION:
            return f"ADD PARTITION ({_definitions(come, dialect)})"
    if not new.partitions:
        return "REMOVE PARTITIONING"
    if old.id != new.id or new.partition_type in _DISTRIBUTED:
        return partition_by(new, dialect)
    return f"REORGANIZE PARTITION {_names([p.name for p in gone])} INTO ({_definitions(come, dialect)})"


def _definitions(partitions: Sequence[PartitionDef], dialect: Dialect) -> str:
    return ", ".join(_definition(p, dialect) for p in partitions)


def _definition(partition: PartitionDef, dialect: Dialect) -> str:
    text = f"PARTITION {quote_name(partition.name)}"
    if partition.less_than:
        text += f" VALUES LESS THAN ({_values(partition.less_than)})"
    elif partition.in_values == (("DEFAULT",),) and dialect.flavour is Flavour.MARIADB:
        text += " DEFAULT"
    elif partition.in_values:
        listed = (f"({_values(v)})" if len(v) > 1 else _values(v) for v in partition.in_values)
        text += f" VALUES IN ({', '.join(listed)})"
    return text + (f" COMMENT = {quote_string(partition.comment)}" if partition.comment else "")


def _values(values: Sequence[str]) -> str:
    return ", ".join(map(expression, values))


def _names(names: Sequence[str]) -> str:
    return ", ".join(map(quote_name, names))
