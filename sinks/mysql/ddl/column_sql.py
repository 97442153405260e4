"""Column and key definitions as SQL, built from the table info.

Promises: pure. Types have explicit lengths, charsets are the target's, and only what TiDB left to its defaults is left to the target's.
"""

from collections.abc import Mapping

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name, quote_string, text_of, tokenize
from pyspark_tidb_binlog.schemas.tableinfo import WHOLE_COLUMN, ColumnFlag, ColumnInfo, ColumnType, IndexInfo, TableInfo
from pyspark_tidb_binlog.sinks.mysql.ddl.charsets import Charset
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import Dialect, charset_text, is_text_or_words, plain_strings
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour

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
_PLAIN: Mapping[int, str] = {ColumnType.DATE: "DATE", ColumnType.NEWDATE: "DATE", ColumnType.YEAR: "YEAR", ColumnType.JSON: "JSON"}


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
        parts.append(charset_text(own))
    if column.generated:
        parts.append(f"GENERATED ALWAYS AS ({expression(column.generated_expr)}) {'STORED' if column.generated_stored else 'VIRTUAL'}")
    parts.append("NOT NULL" if column.not_null else "NULL")
    if dialect.flavour is Flavour.MARIADB and column.generated:
        parts.pop()  # MariaDB does not accept NULL or NOT NULL on a generated column
    own_default = "" if lacks_sequence(column, dialect) else default_clause(column)
    clause = own_default if default is None else f"DEFAULT {default}"
    if clause and not column.generated:
        parts.append(clause)
    if column.flag & ColumnFlag.AUTO_INCREMENT and not lacks_counter(column, dialect):
        parts.append("AUTO_INCREMENT")
    if column.flag & ColumnFlag.ON_UPDATE_NOW:
        parts.append("ON UPDATE CURRENT_TIMESTAMP" + (f"({column.decimal})" if column.decimal > 0 else ""))
    if column.comment:
        parts.append(f"COMMENT {quote_string(column.comment)}")
    return " ".join(parts)


def lacks_counter(column: ColumnInfo, dialect: Dialect) -> bool:
    """Whether the definition is without the upstream's AUTO_INCREMENT: MySQL has none for FLOAT and DOUBLE since 8.4."""
    counts = bool(column.flag & ColumnFlag.AUTO_INCREMENT)
    return counts and column.tp in (ColumnType.FLOAT, ColumnType.DOUBLE) and dialect.flavour is Flavour.MYSQL


def lacks_sequence(column: ColumnInfo, dialect: Dialect) -> bool:
    """Whether the definition is without the upstream's default, which is the next value of a sequence: MySQL has none."""
    return dialect.flavour is Flavour.MYSQL and column.default_is_expr and str(column.default).lower().startswith("nextval(")


def column_type(column: ColumnInfo) -> str:
    """The type with its length or precision."""
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
    return _PLAIN.get(tp, f"type {tp}")  # of a later release, such as VECTOR: a server refuses to add it


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
    """``DEFAULT x``; empty if the column has no default."""
    if column.default_bit is not None:
        return f"DEFAULT b'{int.from_bytes(column.default_bit, 'big'):b}'"
    if column.default is None:
        return ""
    text = str(column.default)
    if column.default_is_expr:
        return f"DEFAULT ({expression(text)})"
    if is_now(column) and (column.tp == ColumnType.DATE or text.upper() == "CURRENT_DATE"):
        return "DEFAULT (CURRENT_DATE)"
    if is_now(column):
        return "DEFAULT CURRENT_TIMESTAMP" + (f"({column.decimal})" if column.decimal > 0 else "")
    return f"DEFAULT {quote_string(text)}"


def expression(text: str) -> str:
    """An expression of a definition, as TiDB writes it, in the target's syntax: in TiDB's strings a backslash is only a backslash."""
    return text_of(plain_strings(tokenize(text, backslash_escapes=False), restored=True))


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
