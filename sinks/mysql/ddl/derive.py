"""Derives statements from the table infos before and after a job, for a target that refuses the text.

Promises: pure. Nothing is guessed: if the infos are ambiguous, there is no derived statement. A derived CREATE TABLE has no partitions
and no foreign keys and reports them as losses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark_tidb_binlog.schemas.column_pairs import pair_columns, visible
from pyspark_tidb_binlog.schemas.ddl_jobs import VISIBLE_IN_INFO
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name, quote_string
from pyspark_tidb_binlog.schemas.history import JobType, TableAt
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, ColumnInfo, ColumnType, IndexInfo, TableInfo
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import Dialect, Losses, quoted
from pyspark_tidb_binlog.sinks.mysql.ddl.column_sql import column_definition, index_definition, lacks_counter
from pyspark_tidb_binlog.sinks.mysql.ddl.defaults import declare, fills_otherwise, origin_literal
from pyspark_tidb_binlog.sinks.mysql.ddl.text import Rewritten, Subject
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour

_CHANGE_THEMSELVES = frozenset({ColumnType.TIMESTAMP, ColumnType.DATETIME})
"""Types that may have ON UPDATE CURRENT_TIMESTAMP, which some servers add implicitly."""

_DERIVABLE = VISIBLE_IN_INFO | {
    JobType.ADD_PRIMARY_KEY,
    JobType.DROP_PRIMARY_KEY,
    JobType.TABLE_COMMENT,
    JobType.TABLE_CHARSET,
}


def derive(subject: Subject, dialect: Dialect) -> tuple[Rewritten, ...]:
    """The statements that change the target as the job does; empty if they cannot be derived from the infos."""
    job = subject.job
    if job.type == JobType.CREATE_TABLES:
        return tuple(create_table(t.schema, replace(t.info, name=t.name), dialect) for t in subject.after)
    if job.type == JobType.CREATE_TABLE and job.table_info is not None:
        info = subject.new.info if subject.new is not None else job.table_info
        return (create_table(subject.schema, replace(info, name=subject.name), dialect),)
    old, new = subject.old, subject.new
    if job.type not in _DERIVABLE or old is None or new is None:
        return ()
    clauses = alter_clauses(subject, old.info, new.info, dialect)
    if not clauses:
        return ()
    name = quoted(old.schema, old.name)
    losses = Losses(f"{old.schema}.{old.name}")
    for key in sorted(set(new.info.foreign_key_names) - set(old.info.foreign_key_names)):
        losses.add(f"foreign key {key} left out")
    pairs = pair_columns(job, subject.query, old.info, new.info) or {}
    for index in expression_changes(old.info, new.info, pairs)[1]:
        losses.add(f"expression index {index} left out")
    for column in visible(new.info):
        was = pairs.get(column.name.lower())
        if lacks_counter(column, dialect) and (was is None or not lacks_counter(was, dialect)):
            losses.add(_no_counter(column))
    added = [c for c in visible(new.info) if c.name.lower() not in pairs and fills_otherwise(c, dialect.flavour)]
    then = declare(name, added, new.info, dialect)
    return (Rewritten(f"ALTER TABLE {name} {', '.join(clauses)}", tuple(losses.texts), then),)


def create_table(schema: str, info: TableInfo, dialect: Dialect) -> Rewritten:
    """An unpartitioned table with these columns and keys."""
    losses = Losses(f"{schema}.{info.name}")
    if info.partitions:
        losses.add("partitions left out")
    for name in info.foreign_key_names:
        losses.add(f"foreign key {name} left out")
    parts = [column_definition(c, info, dialect, explicit=False) for c in visible(info)]
    if info.handle_columns() and info.pk_is_handle:
        parts.append("PRIMARY KEY (" + ", ".join(quote_name(c.name) for c in info.handle_columns()) + ")")
    for column in visible(info):
        if lacks_counter(column, dialect):
            losses.add(_no_counter(column))
    for index in info.indexes:
        if index.state != PUBLIC:
            continue
        if info.over_expression(index):
            losses.add(f"expression index {index.name} left out")
        else:
            parts.append(index_definition(index, dialect))
    found = dialect.charset(info.charset, info.collate)
    comment = f" COMMENT = {quote_string(info.comment)}" if info.comment else ""
    options = f"DEFAULT CHARACTER SET = {found.charset} COLLATE = {found.collate}{comment}"
    return Rewritten(f"CREATE TABLE {quoted(schema, info.name)} ({', '.join(parts)}) {options}", tuple(losses.texts))


def null_fills(subject: Subject, dialect: Dialect) -> tuple[tuple[str, str], ...]:
    """(column, statement) for each column that becomes NOT NULL. TiDB has no NULLs there; at the target they get TiDB's default, not the server's."""
    if subject.old is None or subject.new is None:
        return ()
    info = subject.new.info
    found = []
    for column_name, was in (pair_columns(subject.job, subject.query, subject.old.info, info) or {}).items():
        column = next(c for c in visible(info) if c.name.lower() == column_name)
        if column.not_null and not was.not_null and not was.generated:
            value = origin_literal(replace(was, flag=column.flag), dialect.flavour)
            found.append((was.name, filling(subject.old, was, value, f"{quote_name(was.name)} IS NULL")))
    return tuple(found)


def filling(table: TableAt, column: ColumnInfo, value: str, where: str) -> str:
    """The UPDATE that gives ``column`` the literal ``value`` in some rows, and changes nothing else."""
    own = quote_name(column.name)
    # A column that is assigned is not changed by its ON UPDATE clause.
    names = (quote_name(c.name) for c in visible(table.info) if c.tp in _CHANGE_THEMSELVES and not c.generated)
    still = "".join(f", {name} = {name}" for name in names if name != own)
    return f"UPDATE {quoted(table.schema, table.name)} SET {own} = {value}{still} WHERE {where}"


def alter_clauses(subject: Subject, old: TableInfo, new: TableInfo, dialect: Dialect) -> list[str]:
    """The difference between two infos as ALTER TABLE clauses; empty if a column may have got both a new name and a new id."""
    was = {c.name.lower(): c for c in visible(old)}
    pairs = pair_columns(subject.job, subject.query, old, new)
    if pairs is None:
        return []
    kept = {c.name.lower() for c in pairs.values()}
    clauses = [f"DROP INDEX {quote_name(i.name)}" for i in _gone_indexes(old, new)]
    if dialect.flavour is Flavour.MYSQL:
        gone, _ = expression_changes(old, new, pairs)
        clauses += [f"DROP INDEX {quote_name(name)}" for name in gone if name.lower() not in subject.lacking]
    clauses += [f"DROP COLUMN {quote_name(c.name)}" for name, c in was.items() if name not in kept]
    clauses += _column_clauses(old, new, pairs, dialect)
    clauses += [f"RENAME INDEX {quote_name(a)} TO {quote_name(b)}" for a, b in _renamed_indexes(old, new)]
    clauses += ["ADD " + index_definition(i, dialect) for i in _new_indexes(old, new)]
    if (old.charset, old.collate) != (new.charset, new.collate):
        found = dialect.charset(new.charset, new.collate)
        clauses.append(f"DEFAULT CHARACTER SET = {found.charset} COLLATE = {found.collate}")
    if old.comment != new.comment:
        clauses.append(f"COMMENT = {quote_string(new.comment)}")
    return clauses


def expression_changes(old: TableInfo, new: TableInfo, pairs: Mapping[str, ColumnInfo]) -> tuple[list[str], list[str]]:
    """The names of the expression indexes that a job drops or changes, and of those that it makes or changes; no derived statement can make one.

    ``pairs``: from ``pair_columns``; an index over a renamed column is the same.
    """
    was, now = _expressions(old, {}), _expressions(new, {name: column.name.lower() for name, column in pairs.items()})
    return [name for name, made in was.items() if now.get(name) != made], [name for name, made in now.items() if was.get(name) != made]


def other_than_expressions(info: TableInfo) -> TableInfo:
    """``info`` without its expression indexes and the hidden columns that they need."""
    kept = tuple(replace(i, id=0) for i in info.indexes if not info.over_expression(i))
    return replace(info, columns=tuple(visible(info)), indexes=kept)


def _expressions(info: TableInfo, names: Mapping[str, str]) -> dict[str, tuple[object, ...]]:
    """Expression indexes by name: what makes two of them the same. ``names``: the former ones of plain columns."""
    return {
        i.name: (i.unique, *(c.generated_expr if c.hidden else names.get(c.name.lower(), c.name.lower()) for c in info.index_columns(i)))
        for i in info.indexes
        if i.state == PUBLIC and info.over_expression(i)
    }


def _no_counter(column: ColumnInfo) -> str:
    return f"column {column.name}: AUTO_INCREMENT left out"


def _column_clauses(old: TableInfo, new: TableInfo, pairs: dict[str, ColumnInfo], dialect: Dialect) -> list[str]:
    clauses = []
    order = [c.name.lower() for c in visible(old)]
    expected = [c for c in order if any(p.name.lower() == c for p in pairs.values())]
    position = "FIRST"
    for column in visible(new):
        was = pairs.get(column.name.lower())
        text = column_definition(column, new, dialect, explicit=True)
        moved = was is not None and (not expected or expected[0] != was.name.lower())
        if was is not None and was.name.lower() in expected:
            expected.remove(was.name.lower())
        if was is None:
            filled = origin_literal(column, dialect.flavour) if fills_otherwise(column, dialect.flavour) else None
            clauses.append(f"ADD COLUMN {column_definition(column, new, dialect, explicit=True, default=filled)} {position}")
        elif was.name != column.name:
            clauses.append(f"CHANGE COLUMN {quote_name(was.name)} {text}" + (f" {position}" if moved else ""))
        elif moved or column_definition(was, old, dialect, explicit=True) != text:
            clauses.append(f"MODIFY COLUMN {text}" + (f" {position}" if moved else ""))
        position = f"AFTER {quote_name(column.name)}"
    return clauses


def _keys(info: TableInfo) -> dict[int, IndexInfo]:
    return {i.id: i for i in info.indexes if i.state == PUBLIC and not info.over_expression(i)}


def _shape(info: TableInfo, index: IndexInfo) -> Sequence[object]:
    """The properties of an index apart from its name and its columns' names."""
    by_offset = {c.offset: c.id for c in info.columns}
    return (index.unique, index.primary, index.invisible, tuple((by_offset.get(c.offset), c.length) for c in index.columns))


def _gone_indexes(old: TableInfo, new: TableInfo) -> list[IndexInfo]:
    left = {i.name.lower() for i in _keys(new).values()} | {a.lower() for a, _ in _renamed_indexes(old, new)}
    return [i for i in _keys(old).values() if i.name.lower() not in left]


def _new_indexes(old: TableInfo, new: TableInfo) -> list[IndexInfo]:
    there = {i.name.lower() for i in _keys(old).values()} | {b.lower() for _, b in _renamed_indexes(old, new)}
    return [i for i in _keys(new).values() if i.name.lower() not in there]


def _renamed_indexes(old: TableInfo, new: TableInfo) -> list[tuple[str, str]]:
    before = _keys(old)
    same = [(before[i], index) for i, index in _keys(new).items() if i in before and before[i].name != index.name]
    return [(a.name, b.name) for a, b in same if _shape(old, a)[:2] == _shape(new, b)[:2]]
