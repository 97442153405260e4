"""Statements made from the table infos before and after a job, for when the target refuses the text.

Promises: pure. What cannot be told from the infos for certain is not guessed: then there is no derived statement. Partitions are not
in the infos, so a derived CREATE TABLE makes a plain table and says so in its losses; foreign keys likewise.
"""

from collections.abc import Sequence

from schemas.ddl_tokens import quote_name, quote_string, significant
from schemas.history import Job, JobType
from schemas.tableinfo import PUBLIC, WHOLE_COLUMN, ColumnFlag, ColumnInfo, ColumnType, IndexInfo, TableInfo
from sinks.ddl_clauses import Dialect, Losses, charset_text, is_text_or_words, quoted
from sinks.ddl_text import Rewritten, Subject
from sinks.dialect import Flavour

_ZEROFILL = 1 << 6

_NUMBERS = {
    ColumnType.TINYINT: "TINYINT",
    ColumnType.SMALLINT: "SMALLINT",
    ColumnType.MEDIUMINT: "MEDIUMINT",
    ColumnType.INT: "INT",
    ColumnType.BIGINT: "BIGINT",
    ColumnType.FLOAT: "FLOAT",
    ColumnType.DOUBLE: "DOUBLE",
    ColumnType.DECIMAL: "DECIMAL",
}
_TIMES = {ColumnType.TIMESTAMP: "TIMESTAMP", ColumnType.DATETIME: "DATETIME", ColumnType.TIME: "TIME"}
_LOBS = {
    ColumnType.TINYBLOB: ("TINYTEXT", "TINYBLOB"),
    ColumnType.BLOB: ("TEXT", "BLOB"),
    ColumnType.MEDIUMBLOB: ("MEDIUMTEXT", "MEDIUMBLOB"),
    ColumnType.LONGBLOB: ("LONGTEXT", "LONGBLOB"),
}
_PLAIN = {ColumnType.DATE: "DATE", ColumnType.NEWDATE: "DATE", ColumnType.YEAR: "YEAR", ColumnType.JSON: "JSON"}

_DERIVABLE = frozenset(
    {
        JobType.ADD_COLUMN,
        JobType.DROP_COLUMN,
        JobType.ADD_COLUMNS,
        JobType.DROP_COLUMNS,
        JobType.MODIFY_COLUMN,
        JobType.SET_DEFAULT,
        JobType.ADD_INDEX,
        JobType.DROP_INDEX,
        JobType.DROP_INDEXES,
        JobType.RENAME_INDEX,
        JobType.ADD_PRIMARY_KEY,
        JobType.DROP_PRIMARY_KEY,
        JobType.TABLE_COMMENT,
        JobType.TABLE_CHARSET,
        JobType.MULTI_SCHEMA_CHANGE,
    }
)


def derive(subject: Subject, dialect: Dialect) -> tuple[Rewritten, ...]:
    """The statements that bring the target from before to after; empty when the infos do not tell."""
    job = subject.job
    if job.type == JobType.CREATE_TABLES:
        return tuple(create_table(t.schema, t.info, dialect) for t in subject.after)
    if job.type == JobType.CREATE_TABLE and job.table_info is not None:
        return (create_table(subject.schema, job.table_info, dialect),)
    if job.type not in _DERIVABLE or subject.old is None or job.table_info is None:
        return ()
    clauses = alter_clauses(subject, subject.old.info, job.table_info, dialect)
    if not clauses:
        return ()
    losses = Losses(f"{subject.old.schema}.{subject.old.name}")
    for name in sorted(set(job.table_info.foreign_keys) - set(subject.old.info.foreign_keys)):
        losses.add(f"foreign key {name} left out")
    return (Rewritten(f"ALTER TABLE {quoted(subject.old.schema, subject.old.name)} {', '.join(clauses)}", tuple(losses.texts)),)


def create_table(schema: str, info: TableInfo, dialect: Dialect) -> Rewritten:
    """A plain table with these columns and keys."""
    losses = Losses(f"{schema}.{info.name}")
    if info.partitions:
        losses.add("partitions left out")
    for name in info.foreign_keys:
        losses.add(f"foreign key {name} left out")
    parts = [column_definition(c, info, dialect, explicit=False) for c in _visible(info)]
    if info.handle_columns() and info.pk_is_handle:
        parts.append("PRIMARY KEY (" + ", ".join(quote_name(c.name) for c in info.handle_columns()) + ")")
    for index in info.indexes:
        if index.state != PUBLIC:
            continue
        if _over_expression(info, index):
            losses.add(f"expression index {index.name} left out")
        else:
            parts.append(index_definition(index, dialect))
    found = dialect.charset(info.charset, info.collate)
    comment = f" COMMENT = {quote_string(info.comment)}" if info.comment else ""
    options = f"DEFAULT CHARACTER SET = {found.charset} COLLATE = {found.collate}{comment}"
    return Rewritten(f"CREATE TABLE {quoted(schema, info.name)} ({', '.join(parts)}) {options}", tuple(losses.texts))


def alter_clauses(subject: Subject, old: TableInfo, new: TableInfo, dialect: Dialect) -> list[str]:
    """The difference between two infos as ALTER TABLE clauses; empty when a column may have been changed under a new name and id."""
    was = {c.name.lower(): c for c in _visible(old)}
    pairs = pair_columns(subject.job, subject.query, old, new)
    if pairs is None:
        return []
    kept = {c.name.lower() for c in pairs.values()}
    clauses = [f"DROP INDEX {quote_name(i.name)}" for i in _gone_indexes(old, new)]
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


def column_definition(column: ColumnInfo, info: TableInfo, dialect: Dialect, *, explicit: bool) -> str:
    """Name, type, charset, default and the rest of one column."""
    parts = [quote_name(column.name), column_type(column)]
    own = dialect.charset(column.charset, column.collate)
    if is_text_or_words(column) and (explicit or own != dialect.charset(info.charset, info.collate)):
        parts.append(charset_text(own))
    if column.generated:
        parts.append(f"GENERATED ALWAYS AS ({column.generated_expr}) {'STORED' if column.generated_stored else 'VIRTUAL'}")
    parts.append("NOT NULL" if column.not_null else "NULL")
    if dialect.flavour is Flavour.MARIADB and column.generated:
        parts.pop()  # MariaDB takes no nullability on a generated column
    default = default_clause(column)
    if default and not column.generated:
        parts.append(default)
    if column.flag & ColumnFlag.AUTO_INCREMENT:
        parts.append("AUTO_INCREMENT")
    if column.flag & ColumnFlag.ON_UPDATE_NOW:
        parts.append("ON UPDATE CURRENT_TIMESTAMP" + (f"({column.decimal})" if column.decimal > 0 else ""))
    if column.comment:
        parts.append(f"COMMENT {quote_string(column.comment)}")
    return " ".join(parts)


def column_type(column: ColumnInfo) -> str:
    """The type with its measures."""
    tp, length = column.tp, column.flen
    if tp in _NUMBERS:
        return _number_type(column)
    if tp in _TIMES:
        return _TIMES[ColumnType(tp)] + (f"({column.decimal})" if column.decimal > 0 else "")
    if tp in _LOBS:
        return _LOBS[ColumnType(tp)][column.is_binary]
    if tp in (ColumnType.ENUM, ColumnType.SET):
        return f"{'ENUM' if tp == ColumnType.ENUM else 'SET'}({','.join(quote_string(e) for e in column.elems)})"
    if tp == ColumnType.BIT:
        return f"BIT({max(length, 1)})"
    if tp in (ColumnType.VARCHAR, ColumnType.VAR_STRING):
        return f"{'VARBINARY' if column.is_binary else 'VARCHAR'}({length})"
    if tp == ColumnType.STRING:
        return f"{'BINARY' if column.is_binary else 'CHAR'}({length if length >= 0 else 1})"
    return _PLAIN[ColumnType(tp)]


def _number_type(column: ColumnInfo) -> str:
    name = _NUMBERS[ColumnType(column.tp)]
    if column.tp == ColumnType.DECIMAL:
        name += f"({column.flen},{max(column.decimal, 0)})"
    elif column.tp in (ColumnType.FLOAT, ColumnType.DOUBLE):
        name += f"({column.flen},{column.decimal})" if column.decimal >= 0 and column.flen >= 0 else ""
    elif column.flag & _ZEROFILL or (column.tp == ColumnType.TINYINT and column.flen == 1):
        name += f"({column.flen})"
    return name + (" UNSIGNED" if column.unsigned else "") + (" ZEROFILL" if column.flag & _ZEROFILL else "")


def default_clause(column: ColumnInfo) -> str:
    """``DEFAULT x``; empty when the column has none."""
    if column.default_bit is not None:
        return f"DEFAULT b'{int.from_bytes(column.default_bit, 'big'):b}'"
    if column.default is None:
        return ""
    text = str(column.default)
    if column.default_is_expr:
        return f"DEFAULT ({text})"
    if column.tp in (ColumnType.TIMESTAMP, ColumnType.DATETIME) and text.upper().startswith("CURRENT_TIMESTAMP"):
        return "DEFAULT CURRENT_TIMESTAMP" + (f"({column.decimal})" if column.decimal > 0 else "")
    return f"DEFAULT {quote_string(text)}"


def index_definition(index: IndexInfo, dialect: Dialect) -> str:
    """One key as CREATE TABLE and ALTER TABLE ADD take it."""
    columns = ", ".join(quote_name(c.name) + (f"({c.length})" if c.length != WHOLE_COLUMN else "") for c in index.columns)
    comment = f" COMMENT {quote_string(index.comment)}" if index.comment else ""
    if index.primary:
        return f"PRIMARY KEY ({columns}){comment}"
    hidden = (" IGNORED" if dialect.flavour is Flavour.MARIADB else " INVISIBLE") if index.invisible else ""
    return f"{'UNIQUE ' if index.unique else ''}KEY {quote_name(index.name)} ({columns}){comment}{hidden}"


def _visible(info: TableInfo) -> list[ColumnInfo]:
    return [c for c in info.columns if c.public and not c.hidden]


def _over_expression(info: TableInfo, index: IndexInfo) -> bool:
    return any(c.hidden for c in info.index_columns(index))


def pair_columns(job: Job, query: str, old: TableInfo, new: TableInfo) -> dict[str, ColumnInfo] | None:
    """Which old column each new one (by lower-case name) continues: by id, else by name. None when that is not certain."""
    by_id = {c.id: c for c in _visible(old)}
    by_name = {c.name.lower(): c for c in _visible(old)}
    pairs = {c.name.lower(): by_id[c.id] for c in _visible(new) if c.id in by_id}
    taken = {c.id for c in pairs.values()}
    for column in _visible(new):
        same = by_name.get(column.name.lower())
        if column.name.lower() not in pairs and same is not None and same.id not in taken:
            pairs[column.name.lower()] = same
            taken.add(same.id)
    added = [c for c in _visible(new) if c.name.lower() not in pairs]
    lost = [c for c in _visible(old) if c.id not in taken]
    if added and lost:
        if job.type == JobType.MODIFY_COLUMN and len(added) == len(lost) == 1:
            pairs[added[0].name.lower()] = lost[0]
        elif any(t.word == "CHANGE" for t in significant(query)):
            return None
    return pairs


def _column_clauses(old: TableInfo, new: TableInfo, pairs: dict[str, ColumnInfo], dialect: Dialect) -> list[str]:
    clauses = []
    order = [c.name.lower() for c in _visible(old)]
    expected = [c for c in order if any(p.name.lower() == c for p in pairs.values())]
    position = "FIRST"
    for column in _visible(new):
        was = pairs.get(column.name.lower())
        text = column_definition(column, new, dialect, explicit=True)
        moved = was is not None and (not expected or expected[0] != was.name.lower())
        if was is not None and was.name.lower() in expected:
            expected.remove(was.name.lower())
        if was is None:
            clauses.append(f"ADD COLUMN {text} {position}")
        elif was.name != column.name:
            clauses.append(f"CHANGE COLUMN {quote_name(was.name)} {text}" + (f" {position}" if moved else ""))
        elif moved or column_definition(was, old, dialect, explicit=True) != text:
            clauses.append(f"MODIFY COLUMN {text}" + (f" {position}" if moved else ""))
        position = f"AFTER {quote_name(column.name)}"
    return clauses


def _keys(info: TableInfo) -> dict[int, IndexInfo]:
    return {i.id: i for i in info.indexes if i.state == PUBLIC and not _over_expression(info, i)}


def _shape(info: TableInfo, index: IndexInfo) -> Sequence[object]:
    """What makes an index, whatever it and its columns are called."""
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
