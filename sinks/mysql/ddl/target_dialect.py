"""The target's dialect of DDL: its flavour, its charset and collation for each of TiDB's (docs/charset-mapping.md), and how TiDB's text becomes the target's. Pure.

TiDB stores every non-binary string as UTF-8 and omits the clause for its own default, so the target gets an explicit
one, chosen so that (1) no value that TiDB can hold is lost and (2) no two keys that differ in TiDB are equal on the target.

With old collations upstream, texts of utf8, ascii and gbk become utf8mb4 at a MySQL, because only utf8mb4 has a collation of bytes without padding.
Columns of gbk become utf8mb4 at both servers (``Dialect.column_charset``).

Text is read by its tokens (``schemas.ddl_tokens``): quoted names and strings are never mistaken for keywords. A TiDB gets the upstream's text, without IF NOT EXISTS.
Its sessions ignore placement policies (``tidb_placement_mode``). Names in a text are never changed: where a table has another name at the target
(``[[spark.route]]``), its statements are made of the table infos.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.ddl_tokens import Token, TokenKind, Tokens, significant, text_of, tokenize
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, WHOLE_COLUMN, ColumnInfo, TableInfo
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, is_bytes, is_text
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

    def column_charset(self, column: ColumnInfo, info: TableInfo) -> Charset:
        """The target's charset of a column. gbk becomes utf8mb4, because the target's lacks ``LOST_IN_GBK``, unless a key or a partition needs gbk.

        Of utf8mb4 only the collation of bytes keeps apart what gbk_chinese_ci keeps apart. But partitions are divided by the order of gbk.
        """
        found = self.charset(column.charset, column.collate)
        name = column.name.lower()
        divides = not self.binary and name in {n.lower() for n in info.partition_columns}
        if found.charset != GBK or self.flavour is Flavour.TIDB or divides or _too_long(column, info):
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


def dialect_of(session: Target, config: ApplyConfig) -> Dialect:
    """The target's dialect; depends on the version of MySQL, because 8.0.17 added its non-padding collation.

    ``upstream-new-collations = auto``: the upstream's collations are not known; who knows them has replaced it (``sinks.mysql.upstream_collations``).
    """
    nopad = config.upstream_new_collations != "true"
    if nopad and session.flavour is Flavour.MYSQL:
        nopad = [int(n) for n in re.findall(r"\d+", session.version)[:3]] >= [8, 0, 17]
    default = Charset(config.upstream_collation.partition("_")[0], config.upstream_collation)
    return Dialect(session.flavour, default, nopad, config.upstream_new_collations == "false")


def is_text_or_words(column: ColumnInfo) -> bool:
    """Whether the column's values have a charset: text, ENUM or SET."""
    return is_text(column) or (bool(column.elems) and not column.is_binary)


@dataclass(frozen=True, slots=True)
class DdlStatement:
    """Text for the target, and what it leaves out."""

    sql: str
    losses: tuple[str, ...] = ()
    then: tuple[str, ...] = ()
    """More, idempotent statements of the same DDL."""
    may_fail: bool = False
    """Errors of the target are ignored."""
    by_infos: bool = True
    """It has the target's names and columns. A user's text may not."""


def without_if_not_exists(tokens: Sequence[Token]) -> Tokens:
    """CREATE TABLE, CREATE INDEX and ALTER TABLE without IF NOT EXISTS: the object did not exist upstream, or there would be no job.

    So the target reports an existing object, which must then be compared.
    """
    solid = [i for i, t in enumerate(tokens) if not t.blank]
    spoken = [tokens[i].word for i in solid]
    if spoken[:1] not in (["CREATE"], ["ALTER"]) or not {"TABLE", "INDEX"} & set(spoken[1:4]):
        return list(tokens)
    dropped: set[int] = set()
    for n in range(len(solid) - 3):
        if spoken[n : n + 3] == ["IF", "NOT", "EXISTS"]:
            dropped.update(range(solid[n], solid[n + 3]))
    return [t for i, t in enumerate(tokens) if i not in dropped]


def plain_strings(tokens: Sequence[Token], *, restored: bool) -> Tokens:
    """Strings for our sql_mode: restored text has unescaped backslashes. ``_UTF8MB4`` is removed, being the connection's charset."""
    out: Tokens = []
    for i, token in enumerate(tokens):
        if token.word == "_UTF8MB4" and i + 1 < len(tokens) and tokens[i + 1].kind is TokenKind.STRING:
            continue
        if restored and token.kind is TokenKind.STRING and "\\" in token.text:
            token = Token(TokenKind.STRING, token.text.replace("\\", "\\\\"))
        out.append(token)
    return out


def reads_clock(sql: str) -> bool:
    """Whether ``UNIX_TIMESTAMP('...')`` is in the text, as a boundary of a partition: its number depends on the time zone of the session."""
    solid = [t for t in significant(sql) if t.word != "_UTF8MB4"]
    return any(
        a.word == "UNIX_TIMESTAMP" and b.text == "(" and c.kind is TokenKind.STRING
        for a, b, c in zip(solid, solid[1:], solid[2:], strict=False)
    )


def without_features(tokens: Sequence[Token]) -> Tokens:
    """The tokens without comments and without what only TiDB reads (``/*T! ... */``); MySQL's version comments are kept."""
    out: Tokens = []
    inside = False
    for token in tokens:
        opens = token.kind is TokenKind.FEATURE_OPEN and token.text.startswith("/*T!")
        if not inside and not opens and token.kind is not TokenKind.COMMENT:
            out.append(token)
        inside = opens or (inside and token.kind is not TokenKind.FEATURE_CLOSE)
    return out


def expression(text: str) -> str:
    """An expression of a definition, as TiDB writes it, in the target's syntax: in TiDB's strings a backslash is only a backslash."""
    return text_of(plain_strings(tokenize(text, backslash_escapes=False), restored=True))
