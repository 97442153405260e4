"""The target's dialect of DDL: its flavour, and its charset and collation for each of TiDB's (docs/charset-mapping.md). [db] for ``dialect_of``, the rest is pure.

TiDB stores every non-binary string as UTF-8 and omits the clause for its own default, so the target gets an explicit
one, chosen so that (1) no value that TiDB can hold is lost and (2) no two keys that differ in TiDB are equal on the target.

With old collations upstream, texts of utf8, ascii and gbk become utf8mb4 at a MySQL, because only utf8mb4 has a collation of bytes without padding. A key of
more than 3,072 bytes would be refused, and with it the table (``too_long``). So a column of such a key keeps its charset. Its ``_bin`` pads, so a unique key over
it treats 'a' and 'a ' as equal; a loss names that.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, WHOLE_COLUMN, ColumnInfo, ColumnType, IndexInfo, TableInfo
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, is_bytes, is_text
from pyspark_tidb_binlog.sinks.mysql.structure import TargetTable, read_tables
from pyspark_tidb_binlog.sinks.mysql.target import Target


@dataclass(frozen=True, slots=True)
class Charset:
    """A charset and a collation."""

    charset: str
    collate: str


UPSTREAM_DEFAULT = Charset("utf8mb4", "utf8mb4_bin")

_AS_UTF8MB4 = frozenset({"latin1"})
"""TiDB's latin1 holds any UTF-8 unchecked and compares it by bytes: in the target's latin1 it would become question marks."""

_PAD_IN_MYSQL = frozenset({"utf8_bin", "ascii_bin", "gbk_bin"})
"""MySQL compares bytes without padding in utf8mb4 only, which holds all characters of these charsets."""

_SPELLED = {"utf8": "utf8mb3"}

_MARIADB = {
    "utf8mb4_0900_ai_ci": "utf8mb4_uca1400_nopad_ai_ci",
    "utf8mb4_0900_as_ci": "utf8mb4_uca1400_nopad_as_ci",
    "utf8mb4_0900_as_cs": "utf8mb4_uca1400_nopad_as_cs",
    "utf8mb4_0900_bin": "utf8mb4_nopad_bin",
}
"""Collations that MariaDB has under other names only."""
_NOPAD = {
    Flavour.MARIADB: {
        "utf8mb4_bin": "utf8mb4_nopad_bin",
        "utf8_bin": "utf8mb3_nopad_bin",
        "ascii_bin": "ascii_nopad_bin",
        "gbk_bin": "gbk_nopad_bin",
    },
    Flavour.MYSQL: {"utf8mb4_bin": "utf8mb4_0900_bin"},
}
"""What stands for a collation that may pad upstream."""


@cache
def target_charset(
    charset: str, collate: str, flavour: Flavour, default: Charset = UPSTREAM_DEFAULT, *, nopad: bool = True, binary: bool = False
) -> Charset:
    """The target's charset and collation for those of the upstream; ``default`` if the upstream names none.

    Whether TiDB's ``*_bin`` pads depends on how the cluster was first set up, which binlogs do not show. A NO PAD collation (``nopad``) is
    safe: it distinguishes 'a' and 'a ', and an upstream that pads never has both as keys. Without ``nopad`` the collation keeps its name,
    and pads at the target, which is right only for an upstream that pads. With ``binary`` every collation first becomes the ``*_bin`` of its charset, because
    an upstream with old collations compares all texts as bytes, whatever their collation is called.
    """
    charset, collate = charset.lower(), collate.lower()
    if not charset:
        charset = collate.partition("_")[0] or default.charset
    wanted = Charset(charset, collate or (default.collate if charset == default.charset else f"{charset}_bin"))
    if flavour is Flavour.TIDB:
        return wanted
    if charset in _AS_UTF8MB4:
        wanted = UPSTREAM_DEFAULT
    if binary and wanted.charset != "binary":
        wanted = Charset(wanted.charset, f"{wanted.charset}_bin")
        if flavour is Flavour.MYSQL and nopad and wanted.collate in _PAD_IN_MYSQL:
            wanted = UPSTREAM_DEFAULT
    mapped = (_MARIADB if flavour is Flavour.MARIADB else {}) | (_NOPAD[flavour] if nopad else {})
    return Charset(_SPELLED.get(wanted.charset, wanted.charset), mapped.get(wanted.collate, wanted.collate))


_LONGEST_KEY = 3072
"""Bytes of InnoDB's pages of 16 KiB."""
_PER_CHARACTER = 4
_OWN_PER_CHARACTER = {"utf8": 3, "utf8mb3": 3, "gbk": 2, "latin1": 1, "ascii": 1}
_NUMBERS = {
    ColumnType.TINYINT: 1,
    ColumnType.SMALLINT: 2,
    ColumnType.MEDIUMINT: 3,
    ColumnType.INT: 4,
    ColumnType.BIGINT: 8,
    ColumnType.FLOAT: 4,
    ColumnType.DOUBLE: 8,
    ColumnType.YEAR: 1,
    ColumnType.DATE: 3,
    ColumnType.NEWDATE: 3,
}
_TIMES = {ColumnType.TIMESTAMP: 4, ColumnType.DATETIME: 5, ColumnType.TIME: 3}
"""Without the fraction."""
_DECIMAL_DIGITS = (0, 1, 1, 2, 2, 3, 3, 4, 4)
"""Bytes of what is left of groups of nine digits, which take four."""


def too_long(column: ColumnInfo, info: TableInfo) -> bool:
    """Whether a column of ``info`` is a text that keeps its charset because of a key that is too long in utf8mb4.

    To shorten a key that is not unique, columns that are also in unique keys keep their charset only if the other columns are not enough: they would pad.
    """
    if not is_text(column):
        return False
    unique = {c.id for i in _keys(info) if i.unique or i.primary if _bytes(i, info) <= _LONGEST_KEY for c in info.index_columns(i)}
    for index in _keys(info):
        if column not in info.index_columns(index) or _bytes(index, info) <= _LONGEST_KEY:
            continue
        if index.unique or index.primary or column.id not in unique or _bytes(index, info, unique) > _LONGEST_KEY:
            return True
    return False


def _keys(info: TableInfo) -> list[IndexInfo]:
    return [i for i in info.indexes if i.state == PUBLIC]


def _bytes(index: IndexInfo, info: TableInfo, wide: Collection[int] | None = None) -> int:
    """Of a key, if its texts are utf8mb4; ``wide``: the ids of those that are, where the others keep their charset."""
    found = 0
    for column, part in zip(info.index_columns(index), index.columns, strict=True):
        length = column.flen if part.length == WHOLE_COLUMN else part.length
        if is_text(column):
            own = _OWN_PER_CHARACTER.get(column.charset, _PER_CHARACTER)
            found += length * (_PER_CHARACTER if wide is None or column.id in wide else own)
        else:
            found += length if is_bytes(column) else _bytes_of_other(column)
    return found


def _bytes_of_other(column: ColumnInfo) -> int:
    """Of a value that is neither text nor bytes."""
    fraction = (max(column.decimal, 0) + 1) // 2
    if column.tp in _NUMBERS:
        return _NUMBERS[ColumnType(column.tp)]
    if column.tp in _TIMES:
        return _TIMES[ColumnType(column.tp)] + fraction
    if column.tp == ColumnType.DECIMAL:
        scale = max(column.decimal, 0)
        return sum(n // 9 * 4 + _DECIMAL_DIGITS[n % 9] for n in (column.flen - scale, scale))
    if column.tp == ColumnType.ENUM:
        return 1 if len(column.elems) < 256 else 2
    if column.tp == ColumnType.SET:
        return min((len(column.elems) + 7) // 8, 4) if len(column.elems) <= 32 else 8
    return (column.flen + 7) // 8 if column.tp == ColumnType.BIT else 8


def spelled(name: str) -> str:
    """The charset or collation with ``utf8mb3`` for ``utf8``, as older servers call it."""
    return re.sub(r"^utf8(?=_|$)", "utf8mb3", name)


@dataclass(frozen=True, slots=True)
class Dialect:
    """The properties of the target that DDL text depends on, and the upstream's default charset."""

    flavour: Flavour
    default: Charset = field(default_factory=lambda: UPSTREAM_DEFAULT)
    nopad: bool = True
    """A collation that may pad upstream becomes one that does not."""
    binary: bool = False
    """Every collation becomes one that compares bytes, as upstream."""
    folds_names: bool = False
    """Names of tables and databases are stored in lower case (``lower_case_table_names = 1``)."""

    def charset(self, charset: str, collate: str) -> Charset:
        """The target's charset for one of the upstream."""
        return target_charset(charset, collate, self.flavour, self.default, nopad=self.nopad, binary=self.binary)

    def column_charset(self, column: ColumnInfo, info: TableInfo) -> Charset:
        """The target's charset for a column of ``info``, which keeps its own where a longer one does not fit."""
        found = self.charset(column.charset, column.collate)
        if self.binary and self.nopad and self.flavour is Flavour.MYSQL and too_long(column, info):
            own = replace(self, nopad=False).charset(column.charset, column.collate)
            return found if own.charset == found.charset else own
        return found

    def others(self) -> "tuple[Dialect, ...]":
        """The same as it was, or will be, under another ``spark.upstream-new-collations``; the ones that keep more values apart first."""
        ways = ((True, True), (False, True), (True, False), (False, False))
        return tuple(replace(self, nopad=nopad, binary=binary) for nopad, binary in ways if (nopad, binary) != (self.nopad, self.binary))


def dialect_of(session: Target, config: ApplyConfig) -> Dialect:
    """The target's dialect; depends on the version of MySQL, because 8.0.17 added its non-padding collation.

    ``upstream-new-collations = auto``: the upstream's collations are not known; who knows them has replaced it (``sinks.mysql.upstream_collations``).
    """
    nopad = config.upstream_new_collations != "true"
    if nopad and session.flavour is Flavour.MYSQL:
        numbers = [int(n) for n in re.findall(r"\d+", session.version)[:3]]
        nopad = numbers >= [8, 0, 17]
    default = Charset(config.upstream_collation.partition("_")[0], config.upstream_collation)
    return Dialect(session.flavour, default, nopad, config.upstream_new_collations == "false")


def keeping_padding(session: Target, dialect: Dialect, tables: Sequence[TableAt]) -> Dialect:
    """``dialect``, or the dialect with which one of ``tables`` was created if that keeps more values apart: its next DDL does not convert such a table."""
    stricter = [other for other in dialect.others() if other.nopad >= dialect.nopad and other.binary >= dialect.binary]
    if not stricter or dialect.flavour is Flavour.TIDB:
        return dialect
    for table in tables:
        there: TargetTable | None = None
        for column in visible(table.info):
            own = dialect.charset(column.charset, column.collate)
            unlike_own = [other for other in stricter if other.charset(column.charset, column.collate) != own]
            if is_text_or_words(column) and unlike_own:
                there = there or read_tables(session, [(table.schema, table.name)]).get((table.schema, table.name))
                shown = there.column(column.name) if there else None
                found = [
                    o
                    for o in unlike_own
                    if shown and spelled(o.charset(column.charset, column.collate).collate) == spelled(shown.collation)
                ]
                if found:
                    # The least strict of those that the column shows: another column may show more.
                    return keeping_padding(session, found[-1], tables)
    return dialect


def folds_names(session: Target) -> bool:
    """Whether it stores names of tables in lower case."""
    ((how,),) = session.query("SELECT @@lower_case_table_names")
    return int(how) == 1


def is_text_or_words(column: ColumnInfo) -> bool:
    """Whether the column's values have a charset: text, ENUM or SET."""
    return is_text(column) or (bool(column.elems) and not column.is_binary)


def charset_text(found: Charset) -> str:
    """The charset clause of a column."""
    return f"CHARACTER SET {found.charset} COLLATE {found.collate}"
