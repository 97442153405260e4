"""The target's dialect of DDL: its flavour, and its charset and collation for each of TiDB's (docs/charset-mapping.md). [db] for ``dialect_of``, the rest is pure.

TiDB stores every non-binary string as UTF-8 and omits the clause for its own default, so the target gets an explicit
one, chosen so that (1) no value that TiDB can hold is lost and (2) no two keys that differ in TiDB are equal on the target.

With old collations upstream, texts of utf8, ascii and gbk become utf8mb4 at a MySQL, because only utf8mb4 has a collation of bytes without padding.
"""

import re
from dataclasses import dataclass, field

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, is_text
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
