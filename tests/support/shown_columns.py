"""How a server shows a column's declared default."""

import re
from collections.abc import Iterable

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_string
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.session import Session

_UNQUOTED = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double", "bit"})
_AS_MARIADB: Iterable[tuple[str, str]] = (
    (r"_utf8mb4(?=\\?')", ""),
    (r"\\'", "'"),
    (r"\bnow\(", "current_timestamp("),
    (r"\bcurrent_timestamp\b(?!\()", "current_timestamp()"),
)


def declared(session: Session, name: str) -> tuple[str | None, str, str]:
    """The default of a column in the database ``d``, whether NULL may be, and what comes with an update: as MariaDB writes them."""
    sql = (
        "SELECT column_default, is_nullable, extra, data_type FROM information_schema.columns WHERE table_schema = 'd' AND column_name = %s"
    )
    default, nullable, extra, kind = session.query(sql, [name])[0]
    if session.flavour is Flavour.MARIADB:
        return default, nullable, extra
    words = extra.replace("DEFAULT_GENERATED", "").strip()
    if default is None:
        return "NULL" if nullable == "YES" else None, nullable, _as_mariadb(words)
    if words != extra:
        return _as_mariadb(default), nullable, _as_mariadb(words)
    return default if kind in _UNQUOTED else quote_string(default), nullable, _as_mariadb(words)


def _as_mariadb(text: str) -> str:
    for pattern, word in _AS_MARIADB:
        text = re.sub(pattern, word, text, flags=re.IGNORECASE)
    return re.sub(r"[A-Z_]+(?=\()", lambda found: found[0].lower(), text)
