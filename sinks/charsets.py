"""Which charset and collation of the target stands for TiDB's; the table is explained in docs/charset-mapping.md.

Promises: pure. TiDB keeps every non-binary string as UTF-8 and writes no clause where it means its own default, so the target gets an
explicit one, chosen so that (1) no value TiDB holds is lost and (2) keys compare as upstream.
"""

from dataclasses import dataclass

from sinks.dialect import Flavour


@dataclass(frozen=True, slots=True)
class Charset:
    """A charset and a collation of the target."""

    charset: str
    collate: str


UPSTREAM_DEFAULT = Charset("utf8mb4", "utf8mb4_bin")

_UTF8MB4_BIN = Charset("utf8mb4", "utf8mb4_bin")

_EVERYWHERE = {
    # TiDB's latin1 holds any UTF-8 unchecked and compares it by bytes: the target's own latin1 would turn it into question marks.
    "latin1_bin": _UTF8MB4_BIN,
    "latin1_swedish_ci": _UTF8MB4_BIN,
    "utf8_bin": Charset("utf8mb3", "utf8_bin"),
    "utf8_general_ci": Charset("utf8mb3", "utf8_general_ci"),
    "utf8_unicode_ci": Charset("utf8mb3", "utf8_unicode_ci"),
}

_MARIADB = {
    "utf8mb4_0900_ai_ci": Charset("utf8mb4", "utf8mb4_uca1400_nopad_ai_ci"),
    "utf8mb4_0900_as_ci": Charset("utf8mb4", "utf8mb4_uca1400_nopad_as_ci"),
    "utf8mb4_0900_as_cs": Charset("utf8mb4", "utf8mb4_uca1400_nopad_as_cs"),
    "utf8mb4_0900_bin": Charset("utf8mb4", "utf8mb4_nopad_bin"),
}
"""utf8mb4_0900_* do not pad, so their partners are the nopad ones."""


def target_charset(charset: str, collate: str, flavour: Flavour, default: Charset = UPSTREAM_DEFAULT) -> Charset:
    """What to write on the target for an upstream charset and collation; ``default`` where the upstream names none."""
    wanted = Charset(charset or default.charset, collate or (default.collate if charset in ("", default.charset) else f"{charset}_bin"))
    if flavour is Flavour.TIDB:
        return wanted
    known = {**_EVERYWHERE, **(_MARIADB if flavour is Flavour.MARIADB else {})}
    return known.get(wanted.collate.lower(), wanted)
