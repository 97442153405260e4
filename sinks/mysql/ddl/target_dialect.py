"""The target's dialect of DDL: its flavour, and its charset and collation for each of TiDB's (docs/charset-mapping.md). [db] for ``dialect_of``, the rest is pure.

TiDB stores every non-binary string as UTF-8 and omits the clause for its own default, so the target gets an explicit
one, chosen so that (1) no value that TiDB can hold is lost and (2) no two keys that differ in TiDB are equal on the target.

With old collations upstream, texts of utf8, ascii and gbk become utf8mb4 at a MySQL, because only utf8mb4 has a collation of bytes without padding.
Columns of gbk become utf8mb4 at both servers (``Dialect.column_charset``).
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, WHOLE_COLUMN, ColumnInfo, TableInfo
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, is_bytes, is_text
from pyspark_tidb_binlog.sinks.mysql.structure import read_tables
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

GBK = "gbk"
LOST_IN_GBK = "€, ǹ, 〾, ⿰ to ⿻ and 66 characters from ⺁ to 䶮"
"""The characters of TiDB's gbk for which that of MariaDB and MySQL has a question mark."""
_KEY_BYTES = 3072
"""Maximum of a key."""
_CHARACTER_BYTES = {"ascii": 1, "utf8": 3}
_OTHER_BYTES = 8
"""At most, of a number or time in a key."""

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
    narrow: frozenset[str] = frozenset()
    """Lower-case names of columns that stay gbk, because a foreign key joins them with one that is gbk at the target (``dialect_of``)."""

    def column_charset(self, column: ColumnInfo, info: TableInfo) -> Charset:
        """The target's charset of a column. gbk becomes utf8mb4, because the target's lacks ``LOST_IN_GBK``, unless a key, a partition or a foreign key needs gbk.

        Of utf8mb4 only the collation of bytes keeps apart what gbk_chinese_ci keeps apart. But partitions are divided by the order of gbk.
        """
        found = self.charset(column.charset, column.collate)
        name = column.name.lower()
        divides = not self.binary and name in {n.lower() for n in info.partition_columns}
        if found.charset != GBK or self.flavour is Flavour.TIDB or name in self.narrow or divides or _too_long(column, info):
            return found
        return self.charset(UPSTREAM_DEFAULT.charset, UPSTREAM_DEFAULT.collate)

    def charset(self, charset: str, collate: str) -> Charset:
        """The target's charset and collation for those of the upstream; ``default`` if the upstream names none.

        Whether TiDB's ``*_bin`` pads depends on how the cluster was first set up, which binlogs do not show. A NO PAD collation (``nopad``) is
        safe: it distinguishes 'a' and 'a ', and an upstream that pads never has both as keys. Without ``nopad`` the collation keeps its name,
        and pads at the target, which is right only for an upstream that pads. With ``binary`` every collation first becomes the ``*_bin`` of its charset, because
        an upstream with old collations compares all texts as bytes, whatever their collation is called.
        """
        charset, collate = charset.lower(), collate.lower()
        if not charset:
            charset = collate.partition("_")[0] or self.default.charset
        wanted = Charset(charset, collate or (self.default.collate if charset == self.default.charset else f"{charset}_bin"))
        if self.flavour is Flavour.TIDB:
            return wanted
        if charset in _AS_UTF8MB4:
            wanted = UPSTREAM_DEFAULT
        if self.binary and wanted.charset != "binary":
            wanted = Charset(wanted.charset, f"{wanted.charset}_bin")
            if self.flavour is Flavour.MYSQL and self.nopad and wanted.collate in _PAD_IN_MYSQL:
                wanted = UPSTREAM_DEFAULT
        mapped = (_MARIADB if self.flavour is Flavour.MARIADB else {}) | (_NOPAD[self.flavour] if self.nopad else {})
        return Charset(_SPELLED.get(wanted.charset, wanted.charset), mapped.get(wanted.collate, wanted.collate))


def _too_long(column: ColumnInfo, info: TableInfo) -> bool:
    """Whether ``column`` is in a key that has no room for four bytes a character."""
    keys = (i for i in info.indexes if i.state == PUBLIC and any(c.id == column.id for c in info.index_columns(i)))
    return any(sum(_key_bytes(c, part.length) for part, c in zip(i.columns, info.index_columns(i), strict=True)) > _KEY_BYTES for i in keys)


def _key_bytes(column: ColumnInfo, prefix: int) -> int:
    length = column.flen if prefix == WHOLE_COLUMN else prefix
    return length if is_bytes(column) else length * _CHARACTER_BYTES.get(column.charset, 4) if is_text(column) else _OTHER_BYTES


def dialect_of(session: Target, config: ApplyConfig, tables: Iterable[TableAt] = ()) -> Dialect:
    """The target's dialect, for statements that make columns of ``tables``; depends on the version of MySQL, because 8.0.17 added its non-padding collation.

    ``upstream-new-collations = auto``: the upstream's collations are not known; who knows them has replaced it (``sinks.mysql.upstream_collations``).
    """
    nopad = config.upstream_new_collations != "true"
    if nopad and session.flavour is Flavour.MYSQL:
        numbers = [int(n) for n in re.findall(r"\d+", session.version)[:3]]
        nopad = numbers >= [8, 0, 17]
    default = Charset(config.upstream_collation.partition("_")[0], config.upstream_collation)
    dialect = Dialect(session.flavour, default, nopad, config.upstream_new_collations == "false")
    narrow = frozenset(name for table in tables for name in _joined_with_gbk(session, dialect, table))
    return replace(dialect, narrow=narrow) if narrow else dialect


def _joined_with_gbk(session: Target, dialect: Dialect, table: TableAt) -> Iterator[str]:
    """The columns, in lower case, whose foreign keys refer to columns that are gbk at the target: both must have one charset."""
    gbk = {c.name.lower() for c in table.info.columns if dialect.charset(c.charset, c.collate).charset == GBK}
    for key in table.info.foreign_keys if dialect.flavour is not Flavour.TIDB else ():
        pairs = [(own.lower(), other) for own, other in zip(key.columns, key.ref_columns, strict=False) if own.lower() in gbk]
        name = key.ref_schema or table.schema, key.ref_table
        there = read_tables(session, [name]).get(name) if pairs else None
        yield from (own for own, other in pairs if there and (c := there.column(other)) and c.charset == GBK)


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
