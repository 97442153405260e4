"""Tables, columns, keys, defaults and partitions as SQL, built from the table info: CREATE TABLE, and the parts of which an ALTER TABLE is made. Pure.

columns              types have explicit lengths, charsets are the target's; only what TiDB left to its defaults is left to the target's
defaults             a column is added with its origin default, so that older rows get TiDB's value and not the target's evaluation of a text; it gets its declared
                     default in a second statement if the two differ. Literals of a TIMESTAMP are in UTC, as in the info, like the session
keys                 a MariaDB has no index over an expression, a loss
foreign keys         a name that TiDB has made (``fk_1``) is left to the target: there it must be unique in the database, in TiDB only in the table
CHECK constraints    left out, a loss: the upstream has checked the rows
partitions           those that the upstream has made, with the bounds that it has computed
options              charset, comment, where AUTO_INCREMENT begins; those of TiDB's storage and jobs are losses
"""

import re
from collections.abc import Iterator, Sequence

from pyspark_tidb_binlog.schemas.arrowtypes import INTEGERS, missing_value, zero_value
from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name, quote_string
from pyspark_tidb_binlog.schemas.tableinfo import (
    PUBLIC,
    WHOLE_COLUMN,
    ColumnFlag,
    ColumnInfo,
    ColumnType,
    ForeignKey,
    IndexInfo,
    ReferentialAction,
    TableInfo,
)
from pyspark_tidb_binlog.sinks.mysql.ddl.partitions import names_of, partition_by
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import (
    GBK,
    LOST_IN_GBK,
    Charset,
    DdlStatement,
    Dialect,
    expression,
    is_text_or_words,
)
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, is_bytes, table_name

_ZEROFILL = 1 << 6

_TIMES = frozenset({ColumnType.TIMESTAMP, ColumnType.DATETIME, ColumnType.TIME})
LOBS = frozenset({ColumnType.TINYBLOB, ColumnType.BLOB, ColumnType.MEDIUMBLOB, ColumnType.LONGBLOB, ColumnType.JSON})
"""Types whose default a MySQL takes only as an expression."""
UTC_SINCE = 1
"""``ColumnInfo.version`` from which the default of a TIMESTAMP is stored in UTC."""
_KNOWN = frozenset(ColumnType)
_MADE = re.compile(r"fk_\d+")


def column_definition(
    column: ColumnInfo,
    info: TableInfo,
    dialect: Dialect,
    *,
    explicit: bool,
    default: str | None = None,
    type_: str = "",
    charset: Charset | None = None,
) -> str:
    """The definition of one column.

    ``explicit``: write the charset even if it is the table's. ``default``: a literal instead of the declared default; ``type_``: a type
    with its length instead of the declared one; ``charset``: instead of the upstream's; without a name: the type has none.
    """
    parts = [quote_name(column.name), type_ or column_type(column)]
    own = charset or dialect.column_charset(column, info)
    if own.charset and (
        charset is not None or (is_text_or_words(column) and (explicit or own != dialect.charset(info.charset, info.collate)))
    ):
        parts.append(f"CHARACTER SET {own.charset} COLLATE {own.collate}")
    if column.generated:
        parts.append(f"GENERATED ALWAYS AS ({expression(column.generated_expr)}) {'STORED' if column.generated_stored else 'VIRTUAL'}")
    parts.append("NOT NULL" if column.not_null else "NULL")
    if dialect.flavour is Flavour.MARIADB and column.generated:
        parts.pop()  # MariaDB does not accept NULL or NOT NULL on a generated column
    own_default = "" if lacks_sequence(column, dialect) else default_clause(column)
    clause = own_default if default is None else f"DEFAULT {default}"
    if dialect.flavour is Flavour.MYSQL and column.tp in LOBS and clause.startswith("DEFAULT '"):
        clause = f"DEFAULT ({clause.removeprefix('DEFAULT ')})"
    if clause and not column.generated:
        parts.append(clause)
    if column.flag & ColumnFlag.AUTO_INCREMENT and not lacks_counter(column, info, dialect):
        parts.append("AUTO_INCREMENT")
    if column.flag & ColumnFlag.ON_UPDATE_NOW:
        parts.append("ON UPDATE CURRENT_TIMESTAMP" + (f"({column.decimal})" if column.decimal > 0 else ""))
    if column.comment:
        parts.append(f"COMMENT {quote_string(column.comment)}")
    return " ".join(parts)


def lacks_counter(column: ColumnInfo, info: TableInfo, dialect: Dialect) -> bool:
    """Whether the definition is without the upstream's AUTO_INCREMENT: MySQL has none for FLOAT and DOUBLE since 8.4, and TiDB needs no key that begins with it since 7.0."""
    if not column.flag & ColumnFlag.AUTO_INCREMENT or dialect.flavour is Flavour.TIDB:
        return False
    keys = [info.handle_columns(), *(info.index_columns(i) for i in info.indexes if i.state == PUBLIC)]
    keyed = column.id in {key[0].id for key in keys if key}
    return not keyed or (column.tp in (ColumnType.FLOAT, ColumnType.DOUBLE) and dialect.flavour is Flavour.MYSQL)


def lacks_sequence(column: ColumnInfo, dialect: Dialect) -> bool:
    """Whether the definition is without the upstream's default, which is the next value of a sequence: MySQL has none."""
    return dialect.flavour is Flavour.MYSQL and column.default_is_expr and str(column.default).lower().startswith("nextval(")


def column_type(column: ColumnInfo) -> str:
    """The type with its length or precision."""
    tp, length = column.tp, column.flen
    name = ColumnType(tp).name if tp in _KNOWN else ""
    match tp:
        case ColumnType.ENUM | ColumnType.SET:
            return f"{name}({','.join(quote_string(e) for e in column.elems)})"
        case ColumnType.BIT:
            return f"BIT({max(length, 1)})"
        case ColumnType.VARCHAR | ColumnType.VAR_STRING:
            return f"{'VARBINARY' if column.is_binary else 'VARCHAR'}({length})"
        case ColumnType.STRING:
            return f"{'BINARY' if column.is_binary else 'CHAR'}({length if length >= 0 else 1})"
        case ColumnType.DATE | ColumnType.NEWDATE | ColumnType.YEAR | ColumnType.JSON:
            return name.removeprefix("NEW")
        case _ if tp in _TIMES:
            return name + (f"({column.decimal})" if column.decimal > 0 else "")
        case _ if tp in LOBS:
            return name if column.is_binary else name.replace("BLOB", "TEXT")
        case ColumnType.DECIMAL:
            name += f"({length},{max(column.decimal, 0)})"
        case ColumnType.FLOAT | ColumnType.DOUBLE:
            name += f"({length},{column.decimal})" if column.decimal >= 0 and length >= 0 else ""
        case _ if tp not in INTEGERS:
            return f"type {tp}"  # of a later release, such as VECTOR: a server refuses to add it
        case _ if column.flag & _ZEROFILL or (tp == ColumnType.TINYINT and length == 1):
            name += f"({length})"
    return name + (" UNSIGNED" if column.unsigned else "") + (" ZEROFILL" if column.flag & _ZEROFILL else "")


def default_clause(column: ColumnInfo) -> str:
    """``DEFAULT x``; empty if the column has no default."""
    if column.default_bit is None and column.default is None:
        return ""
    if (literal := declared_literal(column)) is not None:
        return f"DEFAULT {literal}"
    text = str(column.default)
    if column.default_is_expr:
        return f"DEFAULT ({expression(text)})"
    if column.tp == ColumnType.DATE or text.upper() == "CURRENT_DATE":
        return "DEFAULT (CURRENT_DATE)"
    return "DEFAULT CURRENT_TIMESTAMP" + (f"({column.decimal})" if column.decimal > 0 else "")


def is_now(column: ColumnInfo) -> bool:
    """Whether the default is the time, or date, of the insertion."""
    if not isinstance(column.default, str) or column.tp not in (ColumnType.TIMESTAMP, ColumnType.DATETIME, ColumnType.DATE):
        return False
    return column.default.upper().startswith(("CURRENT_TIMESTAMP", "CURRENT_DATE"))


def index_definition(index: IndexInfo, dialect: Dialect, info: TableInfo) -> str:
    """The definition of one key of ``info`` for CREATE TABLE and ALTER TABLE ADD."""
    columns = ", ".join(
        f"({expression(column.generated_expr)})"
        if column.hidden
        else quote_name(part.name) + (f"({part.length})" if part.length != WHOLE_COLUMN else "")
        for part, column in zip(index.columns, info.index_columns(index), strict=True)
    )
    comment = f" COMMENT {quote_string(index.comment)}" if index.comment else ""
    if index.primary:
        return f"PRIMARY KEY ({columns}){comment}"
    hidden = (" IGNORED" if dialect.flavour is Flavour.MARIADB else " INVISIBLE") if index.invisible else ""
    return f"{'UNIQUE ' if index.unique else ''}KEY {quote_name(index.name)} ({columns}){comment}{hidden}"


def create_table(schema: str, info: TableInfo, dialect: Dialect) -> DdlStatement:
    """The table as the upstream has it, without what no server of the flavour can hold."""
    losses = list[str]()
    parts = [column_definition(c, info, dialect, explicit=False) for c in visible(info)]
    if info.handle_columns() and info.pk_is_handle:
        parts.append("PRIMARY KEY (" + ", ".join(quote_name(c.name) for c in info.handle_columns()) + ")")
    for index in info.indexes:
        if index.state == PUBLIC and info.over_expression(index) and dialect.flavour is Flavour.MARIADB:
            losses.append(f"expression index {index.name} left out")
        elif index.state == PUBLIC:
            parts.append(index_definition(index, dialect, info))
    parts += [foreign_key_definition(key, schema) for key in info.foreign_keys]
    partitions = partition_by(info, dialect)
    if info.partitions and not partitions:
        losses.append("partitions left out")
    losses += [words for c in visible(info) if (words := recoded_words(c, info, dialect))]
    losses += left_out(info, dialect)
    comment = f"COMMENT = {quote_string(info.comment)}" if info.comment else ""
    options = " ".join(filter(None, [charset_option(info, dialect), comment, counter_option(info, dialect), partitions]))
    return DdlStatement(
        f"CREATE TABLE {table_name(schema, info.name)} ({', '.join(parts)}) {options}",
        tuple(f"{schema}.{info.name}: {loss}" for loss in losses),
    )


def recoded_words(column: ColumnInfo, info: TableInfo, dialect: Dialect) -> str:
    """Difference between a gbk column of the target and the upstream's; empty if there is none, or the column has another charset."""
    if not is_text_or_words(column) or dialect.charset(column.charset, column.collate).charset != GBK or dialect.flavour is Flavour.TIDB:
        return ""
    if dialect.column_charset(column, info).charset == GBK:
        return f"column {column.name} stays gbk, because a key or a partition needs that: the server's gbk has a question mark for {LOST_IN_GBK}"
    by_bytes = dialect.binary or column.collate.endswith("_bin")
    return "" if by_bytes else f"column {column.name} is utf8mb4, because the server's gbk lacks characters: it compares by case"


def left_out(info: TableInfo, dialect: Dialect) -> Iterator[str]:
    """Yield what no definition made of the infos has of a table."""
    for column in visible(info):
        if lacks_counter(column, info, dialect):
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
    counts = any(c.flag & ColumnFlag.AUTO_INCREMENT and not lacks_counter(c, info, dialect) for c in visible(info))
    return f"AUTO_INCREMENT = {info.auto_increment}" if info.auto_increment and counts else ""


def foreign_key_definition(key: ForeignKey, schema: str) -> str:
    """The definition of one foreign key of a table in ``schema``, for CREATE TABLE and ALTER TABLE ADD."""
    name = "" if _MADE.fullmatch(key.name) else f"CONSTRAINT {quote_name(key.name)} "
    actions = "".join(
        f" ON {what} {ReferentialAction(how).name.replace('_', ' ')}"
        for what, how in (("DELETE", key.on_delete), ("UPDATE", key.on_update))
        if how
    )
    to = table_name(key.ref_schema or schema, key.ref_table)
    return f"{name}FOREIGN KEY ({names_of(key.columns)}) REFERENCES {to} ({names_of(key.ref_columns)}){actions}"


def origin_literal(column: ColumnInfo, flavour: Flavour) -> str:
    """The value of the column in rows written before it existed, as a literal for a DEFAULT clause."""
    origin, tp = column.origin_default, column.tp
    value = missing_value(column, None)
    if value is None:
        return "NULL"
    if tp == ColumnType.BIT:
        return f"b'{int(value):b}'"
    if tp == ColumnType.YEAR:
        return f"'{int(value):04}'"  # '0' is the year 2000
    if tp == ColumnType.SET:
        return quote_string(",".join(word for place, word in enumerate(column.elems) if int(value) >> place & 1))
    if tp == ColumnType.ENUM:
        return quote_string(column.elems[0] if origin is None and column.elems else str(origin))
    if is_bytes(column) and isinstance(value, bytes):
        text = f"x'{value.hex()}'"
    else:
        text = quote_string(value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value))
    return f"({text})" if tp in LOBS and flavour is Flavour.MYSQL else text


def fills_otherwise(column: ColumnInfo, flavour: Flavour) -> bool:
    """Whether the target, executing the text as it is, might give existing rows another value than the origin default."""
    if column.generated or column.flag & ColumnFlag.AUTO_INCREMENT:
        return False
    declared = column.default is not None or column.default_bit is not None
    if not declared:
        if column.tp in LOBS and flavour is not Flavour.MARIADB:
            return False  # a literal default is not allowed there, and these servers fill in the same zero value as TiDB
        return column.not_null and (
            column.tp in (ColumnType.TIMESTAMP, ColumnType.JSON) or missing_value(column, None) != zero_value(column)
        )
    return not _declares_origin(column)


def _declares_origin(column: ColumnInfo) -> bool:
    """Whether new rows get the same value as those that were there."""
    if column.tp == ColumnType.TIMESTAMP or column.default_is_expr or is_now(column):
        return False
    return (column.default, column.default_bit) == (column.origin_default, column.origin_default_bit)


def declare(name: str, columns: Sequence[ColumnInfo], info: TableInfo, dialect: Dialect) -> str:
    """The statement that sets the declared defaults of columns that were added with ``origin_literal``; empty if these are the same.

    ``name``: the quoted table. The statement is idempotent.
    """
    clauses = []
    for column in columns:
        wanted = declared_literal(column)
        declares = column.default is not None and _declares_origin(column)
        if declares or wanted == origin_literal(column, dialect.flavour):
            continue
        if wanted is None and (column.default is not None or column.default_bit is not None):
            clauses.append(f"MODIFY COLUMN {column_definition(column, info, dialect, explicit=True)}")
        elif wanted is None and column.tp == ColumnType.TIMESTAMP:
            continue  # without a default a server may set the column to the current time
        else:
            clauses.append(set_default(column))
    return f"ALTER TABLE {name} {', '.join(clauses)}" if clauses else ""


def timestamps_in_utc(name: str, info: TableInfo) -> str:
    """The statement that sets the literal defaults of TIMESTAMP columns, which a text may have in another zone; empty if there are none."""
    columns = (c for c in visible(info) if c.tp == ColumnType.TIMESTAMP and c.version >= UTC_SINCE)
    clauses = [set_default(c) for c in columns if declared_literal(c) not in (None, "NULL")]
    return f"ALTER TABLE {name} {', '.join(clauses)}" if clauses else ""


def set_default(column: ColumnInfo) -> str:
    """The clause that gives a column its declared default, which is a literal, or takes its default away."""
    wanted = declared_literal(column)
    return f"ALTER COLUMN {quote_name(column.name)} {'DROP DEFAULT' if wanted is None else f'SET DEFAULT {wanted}'}"


def declared_literal(column: ColumnInfo) -> str | None:
    """The declared default as a literal; None if there is none or it is an expression."""
    if column.default_bit is not None:
        return f"b'{int.from_bytes(column.default_bit, 'big'):b}'"
    if column.default is None and not column.not_null:
        return "NULL"
    if column.default is None or column.default_is_expr or is_now(column):
        return None
    return quote_string(str(column.default))
