"""Values of ``sql_mode`` in the apply sessions: which are refused, which are left out, and which hold for DDLs alone. Pure.

Promises: in a mode that ``refusals`` accepts, the target reads a literal of ``sinks.mysql.literals`` as the value that the literal
represents.
"""

_AS_SQL = "row data could be read as SQL"

REFUSED = {
    "NO_BACKSLASH_ESCAPES": _AS_SQL,
    "ANSI_QUOTES": _AS_SQL,
    "EMPTY_STRING_IS_NULL": "an empty text would become NULL",
    "PAD_CHAR_TO_FULL_LENGTH": "rows without a key would not be found by their CHAR columns",
    "REAL_AS_FLOAT": "a REAL of the upstream would lose digits",
}
"""Modes that a session must not have, and the reasons."""

_MEANS_ANSI_QUOTES = frozenset({"ANSI", "DB2", "MAXDB", "MSSQL", "ORACLE", "POSTGRESQL"})
"""Combination modes that include ``ANSI_QUOTES`` (MySQL 5.7, MariaDB; MySQL 8 has only ``ANSI``)."""

ALWAYS = "NO_AUTO_VALUE_ON_ZERO"
"""Set in every session regardless of the setting: a 0 in an AUTO_INCREMENT column is a row value."""


ROUNDS_TIMES = "TIME_ROUND_FRACTIONAL"
"""Set in MariaDB sessions: a MODIFY that reduces the fraction digits of times rounds as in TiDB and MySQL. Row literals already have their
columns' digits."""


FOR_DDLS = frozenset({"STRICT_TRANS_TABLES", "STRICT_ALL_TABLES"})
"""Modes by which a server refuses values that the upstream holds, as 0 in an ENUM. Rows are written without them; a value that the server changes is a
finding."""


NEVER = frozenset({"NO_ZERO_DATE", "NO_ZERO_IN_DATE", "TRADITIONAL"})
"""Modes by which a server refuses dates that the upstream holds, or stores zeros instead: also those of the rows that an ALTER TABLE copies, whichever
column it changes. The strict modes of ``TRADITIONAL`` are named beside it in a session's modes."""


ANY_DATE = "ALLOW_INVALID_DATES"
"""The upstream may hold a February 31: without this mode it is stored as zeros, and an ALTER TABLE that copies it zeroes it, or is refused."""


def for_all(effective: str) -> str:
    """The modes of every session: ``effective``, the modes as the server names them, without ``NEVER`` and with ``ANY_DATE``."""
    kept = [mode for mode in effective.split(",") if mode.strip() and mode.strip().upper() not in NEVER]
    return ",".join(kept if ANY_DATE in map(str.upper, kept) else (*kept, ANY_DATE))


def for_rows(effective: str) -> str:
    """As ``for_all``, and without the modes that are for DDLs alone."""
    return ",".join(mode for mode in for_all(effective).split(",") if mode.strip().upper() not in FOR_DDLS)


def refusals(sql_mode: str) -> tuple[str, ...]:
    """Why each refused mode in ``sql_mode`` is refused: one text per mode, none for an accepted mode."""
    found = []
    for name in sql_mode.upper().split(","):
        mode = name.strip()
        if mode in _MEANS_ANSI_QUOTES:
            found.append(f"{mode} (it contains ANSI_QUOTES, with which {REFUSED['ANSI_QUOTES']})")
        elif mode in REFUSED:
            found.append(f"{mode} (with this mode {REFUSED[mode]})")
    return tuple(found)
