"""Which values of ``sql_mode`` the apply sessions cannot run in. Pure.

Promises: a mode that ``refusals`` passes reads a literal of ``sinks.mysql.literals`` as the value it stands for.
"""

_AS_SQL = "row data could be read as SQL"

REFUSED = {
    "NO_BACKSLASH_ESCAPES": _AS_SQL,
    "ANSI_QUOTES": _AS_SQL,
    "EMPTY_STRING_IS_NULL": "an empty text would become NULL",
    "PAD_CHAR_TO_FULL_LENGTH": "rows without a key would not be found by their CHAR columns",
    "REAL_AS_FLOAT": "a REAL of the upstream would lose digits",
}
"""Modes that a session must not have, and why."""

_MEANS_ANSI_QUOTES = frozenset({"ANSI", "DB2", "MAXDB", "MSSQL", "ORACLE", "POSTGRESQL"})
"""Names that stand for several modes, ``ANSI_QUOTES`` among them (MySQL 5.7, MariaDB; MySQL 8 knows only the first)."""

ALWAYS = "NO_AUTO_VALUE_ON_ZERO"
"""Every session has it whatever the setting says: a 0 in an AUTO_INCREMENT column is a value of the row."""


ROUNDS_TIMES = "TIME_ROUND_FRACTIONAL"
"""MariaDB sessions have it: a MODIFY that takes digits from times rounds them as TiDB and MySQL do. Literals of rows have their columns' digits."""


def refusals(sql_mode: str) -> tuple[str, ...]:
    """Why each refused mode in ``sql_mode`` is refused: one text per mode, none where the mode will do."""
    found = []
    for name in sql_mode.upper().split(","):
        mode = name.strip()
        if mode in _MEANS_ANSI_QUOTES:
            found.append(f"{mode} contains ANSI_QUOTES, in which {REFUSED['ANSI_QUOTES']}")
        elif mode in REFUSED:
            found.append(f"{mode}, in which {REFUSED[mode]}")
    return tuple(found)
