"""Maps TiDB's charsets and collations to the target's; the table is explained in docs/charset-mapping.md.

Promises: pure. TiDB stores every non-binary string as UTF-8 and omits the clause for its own default, so the target gets an explicit
one, chosen so that (1) no value that TiDB can hold is lost and (2) no two keys that differ in TiDB are equal on the target.
"""

from dataclasses import dataclass

from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour


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
