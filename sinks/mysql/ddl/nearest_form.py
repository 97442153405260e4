"""Nearest forms of a table's definition, for a server that refuses it as it is: each function returns a simpler definition, and what it left out in words. Pure.

    TINYINT AS (regexp_like(a, '^1')) VIRTUAL    left out, with the keys and columns that are made of the column
    VARCHAR(60) AS (upper(a)) STORED             a plain column, to which rows write the upstream's values
    VARCHAR(9000) in a row of over 65,535 bytes  TEXT, or MEDIUMTEXT
    VARCHAR(60) in a row of over 8,126 bytes     VARCHAR(64): from 256 bytes on InnoDB stores a value off the page. So CHAR, and BINARY with its zeros as VARBINARY

Promises: every value that the upstream's column holds is held. Columns of keys keep their types. Each result differs from the definition that was given, or is None.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from math import ceil

from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.ddl_tokens import tokenize
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, WHOLE_COLUMN, ColumnInfo, ColumnType, IndexInfo, TableInfo
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import LOBS, column_type
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect, is_text_or_words
from pyspark_tidb_binlog.sinks.mysql.dialect import is_text

MOST_IN_ROW, MOST_IN_PAGE = 65_535, 8_126
"""Bytes of a row without texts and blobs (every server), and of its part in a page of 16 KiB (InnoDB)."""
_OFF_PAGE = 256
"""Bytes from which on a VARCHAR or VARBINARY may be stored off the page."""
_POINTER = 41
"""Bytes in the page of a value that is stored off it."""
_TEXT = 65_535
"""Bytes of a TEXT or BLOB."""
_KEY_BYTES = 3_072
_CHARACTER_BYTES = {"utf8mb4": 4, "utf8mb3": 3, "gbk": 4}  # gbk is utf8mb4 there, but in keys
_FIXED_BYTES = {ColumnType.TINYINT: 1, ColumnType.SMALLINT: 2, ColumnType.MEDIUMINT: 3, ColumnType.INT: 4, ColumnType.FLOAT: 4}
_VARYING = frozenset({ColumnType.VARCHAR, ColumnType.VAR_STRING})


@dataclass(frozen=True, slots=True)
class NearestForm:
    """A definition, and what the upstream's has that it lacks, in words without the table's name."""

    info: TableInfo
    losses: tuple[str, ...] = ()


def computing_less(info: TableInfo, refused: Collection[ColumnInfo], why: str) -> NearestForm | None:
    """The table without the VIRTUAL columns of ``refused``, and what is made of them; its STORED ones are plain."""
    plain = {c.id for c in refused if c.generated_stored}
    gone = {c.id for c in refused if c.generated and not c.generated_stored}
    names = {c.name.lower() for c in refused if c.id in gone}
    more = True
    while more:  # a column may be made of a column that is made of another one
        made = [c for c in info.columns if c.generated and c.id not in gone | plain and names_in(c.generated_expr) & names]
        plain |= {c.id for c in made if c.generated_stored}
        gone |= {c.id for c in made if not c.generated_stored}
        names |= {c.name.lower() for c in made if c.id in gone}
        more = bool(made)
    if not gone | plain:
        return None
    computed_here = {c: f"{column_type(c)} AS ({c.generated_expr})" for c in visible(info)}
    losses = [f"column {c.name}: {words} is left out: {why}" for c, words in computed_here.items() if c.id in gone]
    losses += [
        f"column {c.name} is not computed by the target, and gets the upstream's values: {words}: {why}"
        for c, words in computed_here.items()
        if c.id in plain
    ]
    left = without_columns(plainly(info, plain), gone)
    return NearestForm(left.info, (*losses, *left.losses))


def plainly(info: TableInfo, ids: Collection[int]) -> TableInfo:
    """The table whose computed columns of these ids are plain."""
    columns = tuple(replace(c, generated_expr="", generated_stored=False) if c.id in ids else c for c in info.columns)
    return replace(info, columns=columns)


def without_columns(info: TableInfo, gone: Collection[int]) -> NearestForm:
    """The table without the columns of these ids, and without the keys, foreign keys and partitions that need them."""
    names = {c.name.lower() for c in info.columns if c.id in gone}
    left = info.with_only({c.id for c in info.columns} - set(gone))
    kept = {i.id for i in left.indexes}
    lost = (i for i in info.indexes if i.id not in kept and i.state == PUBLIC)
    losses = [f"{'expression index' if info.over_expression(i) else 'key'} {i.name} left out" for i in lost]
    foreign = tuple(k for k in info.foreign_keys if not names & {c.lower() for c in k.columns})
    losses += [f"foreign key {k.name} left out" for k in info.foreign_keys if k not in foreign]
    left = replace(left, foreign_keys=foreign)
    if names & (names_in(info.partition_expr) | {c.lower() for c in info.partition_columns}):
        left, losses = left.without_partitions(), [*losses, "partitions left out"]
    return NearestForm(left, tuple(losses))


def without_defaults(info: TableInfo, refused: Collection[ColumnInfo], why: str) -> NearestForm | None:
    """The table without the defaults of these columns, which rows do not need: they have all values."""
    ids = {c.id for c in refused}
    if not ids:
        return None
    columns = tuple(replace(c, default=None, default_bit=None, default_is_expr=False) if c.id in ids else c for c in info.columns)
    return NearestForm(replace(info, columns=columns), tuple(f"column {c.name}: DEFAULT ({c.default}) left out: {why}" for c in refused))


def with_server_names(info: TableInfo, names: Collection[str], why: str) -> NearestForm | None:
    """The table whose foreign keys of these names are named by the server, in the form of a name that TiDB has made (``table_sql.foreign_key_definition``)."""
    keys = tuple(replace(k, name=f"fk_0{n}") if k.name in names else k for n, k in enumerate(info.foreign_keys, 1))
    if keys == info.foreign_keys:
        return None
    losses = (f"foreign key {k.name} has another name: {why}" for k in info.foreign_keys if k.name in names)
    return NearestForm(replace(info, foreign_keys=keys), tuple(losses))


def with_texts(info: TableInfo, dialect: Dialect, why: str, named: Collection[str] = ()) -> NearestForm | None:
    """The table with its widest VARCHARs as texts, as many as are needed for a row; ``named``: those that are too long by themselves."""

    def as_text(column: ColumnInfo) -> ColumnInfo:
        tp = ColumnType.BLOB if declared_bytes(column, dialect) <= _TEXT else ColumnType.MEDIUMBLOB
        return replace(column, tp=tp, flen=-1)

    fit = [c for c in visible(info) if c.tp in _VARYING and not c.generated and (not named or c.name in named)]
    return _smaller(info, fit, as_text, lambda c: _row_bytes(c, dialect), 0 if named else MOST_IN_ROW, why)


def off_page(info: TableInfo, dialect: Dialect, why: str) -> NearestForm | None:
    """The table with its widest short columns so long that InnoDB stores them off the page, as many as are needed."""
    fit = [
        c
        for c in visible(info)
        if c.tp in {*_VARYING, ColumnType.STRING} and not c.generated and _POINTER < declared_bytes(c, dialect) < _OFF_PAGE
    ]
    return _smaller(info, fit, lambda c: off_page_form(c, dialect), lambda c: _page_bytes(c, dialect), MOST_IN_PAGE, why)


def off_page_form(column: ColumnInfo, dialect: Dialect) -> ColumnInfo:
    """The form of a CHAR, VARCHAR or BINARY of which InnoDB stores long values off the page; of others the column itself."""
    if column.tp not in {*_VARYING, ColumnType.STRING}:
        return column
    flen = max(column.flen, ceil(_OFF_PAGE / character_bytes(column, dialect)))
    zeros = column.flen if column.is_binary and column.tp == ColumnType.STRING else 0  # that a BINARY of this length adds
    default, origin = (
        text + "\0" * (zeros - len(text.encode("utf-8", "surrogateescape"))) if isinstance(text, str) else text
        for text in (column.default, column.origin_default)
    )
    return replace(column, tp=ColumnType.VARCHAR, flen=flen, default=default, origin_default=origin)


def may_overflow(info: TableInfo, dialect: Dialect) -> bool:
    """Whether a row may need more than a page holds. A MariaDB adds columns without asking, and refuses the row."""
    return sum(_page_bytes(c, dialect) for c in visible(info)) > MOST_IN_PAGE


def _smaller(
    info: TableInfo,
    fit: Collection[ColumnInfo],
    change: Callable[[ColumnInfo], ColumnInfo],
    size: Callable[[ColumnInfo], int],
    most: int,
    why: str,
) -> NearestForm | None:
    """``info`` with the widest columns of ``fit`` changed until the sizes of all are at most ``most``, and at least one of them; columns of keys stay."""
    divides = {name.lower() for name in info.partition_columns} | names_in(info.partition_expr)
    keyed = {c.id for i in info.indexes for c in info.index_columns(i)} | {c.id for c in info.handle_columns()}
    keyed |= {c.id for c in info.columns if c.name.lower() in divides}
    whole, changed = sum(map(size, visible(info))), dict[int, ColumnInfo]()
    for column in sorted((c for c in fit if c.id not in keyed), key=size, reverse=True):
        if changed and whole <= most:
            break
        changed[column.id] = change(column)
        whole += size(changed[column.id]) - size(column)
    if not changed:
        return None
    columns = tuple(changed.get(c.id, c) for c in info.columns)
    losses = (
        f"column {c.name} is {column_type(changed[c.id])} instead of {column_type(c)}: {why}" for c in info.columns if c.id in changed
    )
    return NearestForm(replace(info, columns=columns), tuple(losses))


def with_prefixes(info: TableInfo, texts: Collection[str], dialect: Dialect) -> NearestForm | None:
    """The table whose keys over ``texts``, names in lower case of columns that are texts at the target, have the declared length as prefix."""
    by_offset = {c.offset: c for c in info.columns}

    def prefixed(index: IndexInfo) -> IndexInfo:
        parts = tuple(
            replace(p, length=min(c.flen, _KEY_BYTES // character_bytes(c, dialect)) if not index.unique else c.flen)
            if (c := by_offset[p.offset]).name.lower() in texts and p.length == WHOLE_COLUMN and c.flen > 0
            else p
            for p in index.columns
        )
        return replace(index, columns=parts)

    found = replace(info, indexes=tuple(map(prefixed, info.indexes)))
    return NearestForm(found) if found != info else None


def bare(info: TableInfo) -> TableInfo:
    """The table with what rows need: plain and STORED columns, and the keys by which rows are found."""
    left = without_columns(info, {c.id for c in info.columns if c.hidden or (c.generated and not c.generated_stored)}).info
    # Rows are found by the primary key, else by the first unique key without NULL, else by every unique key. A column that counts needs one that begins with it.
    unique = [i for i in left.indexes if i.unique or i.primary]
    certain = [] if left.pk_is_handle else [i for i in unique if all(c.not_null for c in left.index_columns(i))][:1] or unique
    needed = {i.id for i in [i for i in unique if i.primary] or certain}
    columns = tuple(
        replace(c, comment="", default=None, default_is_expr=False) if c.default_is_expr else replace(c, comment="") for c in left.columns
    )
    keys = tuple(replace(i, comment="") for i in left.indexes if i.id in needed)
    return replace(left.without_partitions(), columns=columns, indexes=keys, foreign_keys=(), comment="")


def names_in(expression: str) -> frozenset[str]:
    """The names in an expression as TiDB writes it, in lower case: each column is in backquotes."""
    return frozenset(t.name.lower() for t in tokenize(expression, backslash_escapes=False) if t.text.startswith("`"))


def character_bytes(column: ColumnInfo, dialect: Dialect) -> int:
    """The most bytes of a character of the column at the target."""
    if not is_text_or_words(column):
        return 1
    return _CHARACTER_BYTES.get(dialect.charset(column.charset, column.collate).charset, 1)


def declared_bytes(column: ColumnInfo, dialect: Dialect) -> int:
    """The most bytes of a value at the target, of a type with a length."""
    return max(column.flen, 1) * character_bytes(column, dialect)


def _row_bytes(column: ColumnInfo, dialect: Dialect) -> int:
    """Bytes that the column counts for the length of a row, about."""
    if column.tp in LOBS:
        return 12
    if column.tp in _VARYING or column.tp == ColumnType.STRING:
        return declared_bytes(column, dialect) + 2
    return max(column.flen, 8) // 2 + 1 if column.tp == ColumnType.DECIMAL else _FIXED_BYTES.get(ColumnType(column.tp), 8)


def _page_bytes(column: ColumnInfo, dialect: Dialect) -> int:
    """Bytes of the column that must be in the page, about."""
    long = column.tp in LOBS or ((column.tp in _VARYING or is_text(column)) and declared_bytes(column, dialect) >= _OFF_PAGE)
    return _POINTER if long else _row_bytes(column, dialect)
