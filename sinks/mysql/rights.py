"""The rights of the target's account: what SHOW GRANTS says, and what fails without each right that a stream needs. Pure, but for the two questions.

Promises: recognises every form of GRANT that MariaDB, MySQL and TiDB print. Rights of a role count, because
servers list the rights of active roles. Rights on single tables or columns do not count: a stream writes every table of a database.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pyspark_tidb_binlog.schemas.remarks import Remark, hinders, note, some
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.routing.table_filter import MARK_SCHEMA

_NAME = r"`(?:[^`]|``)*`|[^\s.`]+"
_GRANT = re.compile(
    rf"(?P<verb>GRANT|REVOKE) (?P<rights>.+?) ON (?:TABLE )?(?P<database>{_NAME})\.(?P<table>{_NAME}) (?:TO|FROM) ",
    re.IGNORECASE | re.DOTALL,
)
_ALL = "ALL PRIVILEGES"

ROWS = ("SELECT", "INSERT", "UPDATE", "DELETE")
DDLS = ("CREATE", "DROP", "ALTER", "INDEX")
_OWN = (*ROWS, "CREATE")
"""On the databases of our own tables."""
_BREAKS = {
    "SELECT": "a DDL stops the stream, and so does a statement whose effect is in doubt: both read the table back",
    "INSERT": "no row can be written",
    "UPDATE": "no row can be changed",
    "DELETE": "no row can be deleted",
    "CREATE": "a CREATE TABLE or CREATE DATABASE stops the stream",
    "DROP": "a DROP TABLE, a TRUNCATE or a RENAME stops the stream",
    "ALTER": "an ALTER TABLE or a RENAME stops the stream",
    "INDEX": "a CREATE INDEX or DROP INDEX stops the stream",
    "REFERENCES": "a FOREIGN KEY stops the stream",
    "CREATE VIEW": "views are left out",
    "SHOW VIEW": "a DDL on a view stops the stream, which reads the view before and after",
}


@dataclass(frozen=True, slots=True)
class Granted:
    """Rights on a database, or on all."""

    rights: frozenset[str]
    database: str
    """A pattern of LIKE; ``*`` = all databases."""
    but: "tuple[Granted, ...]" = ()
    """What MySQL's partial revokes take from a grant on all databases: ``rights`` on ``database`` each."""

    def covers(self, right: str, database: str) -> bool:
        """Whether it gives ``right`` on every table of ``database``; an empty one: on all databases."""
        if right not in self.rights and _ALL not in self.rights and "ALL" not in self.rights:
            return False
        if database and any(one.covers(right, database) for one in self.but):
            return False
        return self.database == "*" or (bool(database) and _like(self.database, database))


@dataclass(frozen=True, slots=True)
class WantedRights:
    """What a stream does at the target."""

    databases: Sequence[str]
    """Those that rows and DDLs are written to."""
    record: str
    """``syncer.to.checkpoint.schema``."""
    views: bool = False
    """There are views upstream."""
    foreign_keys: bool = False
    asks_timestamp: bool = False
    """``db-type = tidb``."""
    marks: bool = False
    """``loopback-control``: transactions are marked in a table of their own."""


def account_in(session: Session) -> str:
    """The session's account, as GRANT names it: ``'drainer'@'%'``."""
    user, _, host = str(session.query("SELECT CURRENT_USER()")[0][0]).rpartition("@")
    return f"'{user}'@'{host}'"


def grants_in(session: Session) -> tuple[Granted, ...]:
    """What the session's account may do."""
    return read_grants(str(line[0]) for line in session.query("SHOW GRANTS"))


def read_grants(lines: Iterable[str]) -> tuple[Granted, ...]:
    """The grants in the answer of SHOW GRANTS, except those on single tables."""
    found: dict[str, list[Granted]] = {"GRANT": [], "REVOKE": []}
    for line in lines:
        match = _GRANT.match(line.strip())
        if match is not None and match["table"] == "*":
            rights = frozenset(re.sub(r"\s+", " ", right).strip().upper() for right in match["rights"].split(","))
            verb, database = match["verb"].upper(), _unquoted(match["database"])
            # Where there are partial revokes, signs of LIKE mean themselves.
            found[verb].append(Granted(rights, _pattern(re.sub(r"\\([_%\\])", r"\1", database)) if verb == "REVOKE" else database))
    but = tuple(found["REVOKE"])
    return tuple(replace(one, but=but) if one.database == "*" else one for one in found["GRANT"])


def missing_rights(granted: Sequence[Granted], wanted: WantedRights, account: str, where: str) -> Iterator[Remark]:
    """What fails because the account lacks a right.

    Args:
        granted: what the account may do.
        wanted: what the stream does.
        account: as GRANT names it, ``'drainer'@'%'``.
        where: the server, for the remarks.
    """

    def has(right: str, database: str = "") -> bool:
        return any(one.covers(right, database) for one in granted)

    here = f"account {account} at {where}"
    own = tuple(right for right in _OWN if not has(right, wanted.record))
    if own:
        what = f"lacks {', '.join(own)} on {wanted.record}.*, which holds the checkpoint, the lease and the records of DDLs: no start"
        yield hinders(here, what, _grant(own, wanted.record, account))
    if wanted.marks and (own := tuple(right for right in _OWN if not has(right, MARK_SCHEMA))):
        what = f"lacks {', '.join(own)} on {MARK_SCHEMA}.*, where loopback-control marks each transaction: no start"
        yield hinders(here, what, _grant(own, MARK_SCHEMA, account))
    for right in _replicating(wanted):
        lacking = [database for database in wanted.databases if not has(right, database)]
        if lacking:
            shown = some([f"{name}.*" for name in lacking], 5)
            todo = _grant((right,), lacking[0] if len(lacking) == 1 else "", account)
            yield hinders(here, f"lacks {right} on {shown}: {_BREAKS[right]}", todo)
    if not has("CREATE") and all(has("CREATE", database) for database in wanted.databases):
        what = "lacks CREATE on *.*: a CREATE DATABASE of a name that no GRANT covers stops the stream"
        yield note(here, what, "grant it before such a database is created upstream")
    if not has("PROCESS"):
        what = (
            "lacks PROCESS, which only a start after a crash needs: the server's table ids show whether a RENAME, an EXCHANGE PARTITION or another "
            "invisible change was executed"
        )
        yield note(here, what, f"GRANT PROCESS ON *.* TO {account}")
    if wanted.asks_timestamp and not (has("REPLICATION CLIENT") or has("SUPER")):
        what = "lacks REPLICATION CLIENT: the checkpoint's ts-map gets no timestamps of the target, and sync-diff-inspector needs them"
        yield note(here, what, f"GRANT REPLICATION CLIENT ON *.* TO {account}")


def statements(wanted: WantedRights, account: str) -> Iterator[str]:
    """The GRANTs that give ``account`` what the stream needs, and no more, a database each."""
    for database in wanted.databases:
        yield _grant(_replicating(wanted), database, account)
    yield _grant(_OWN, wanted.record, account)
    if wanted.marks:
        yield _grant(_OWN, MARK_SCHEMA, account)
    yield f"GRANT PROCESS{', REPLICATION CLIENT' if wanted.asks_timestamp else ''} ON *.* TO {account}"


def reading(databases: Sequence[str], account: str, *, views: bool) -> Iterator[str]:
    """The GRANTs that let ``account`` copy tables from the upstream; ``views``: there are views."""
    for database in databases:
        yield _grant(("SELECT", *(("SHOW VIEW",) * views)), database, account)
    yield f"GRANT SELECT ON `mysql`.`tidb` TO {account}"


def _replicating(wanted: WantedRights) -> tuple[str, ...]:
    """What is needed on a database that is replicated."""
    return (*ROWS, *DDLS, *(("REFERENCES",) * wanted.foreign_keys), *(("CREATE VIEW", "SHOW VIEW") if wanted.views else ()))


def may_write_read_only(granted: Sequence[Granted]) -> bool:
    """Whether ``read_only`` does not stop the account."""
    rights = ("SUPER", "READ_ONLY ADMIN", "CONNECTION_ADMIN")
    return any(one.covers(right, "") for one in granted for right in rights)


def _grant(rights: Iterable[str], database: str, account: str) -> str:
    pattern = _pattern(database).replace("`", "``")
    place = f"`{pattern}`.*" if database else "DATABASE.*"
    return f"GRANT {', '.join(rights)} ON {place} TO {account}" + ("" if database else ", for each")


def _pattern(name: str) -> str:
    """The pattern of LIKE that means this name only."""
    return re.sub(r"([_%\\])", r"\\\1", name)


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def _like(pattern: str, name: str) -> bool:
    """Whether a database matches the pattern of a grant: ``%``, ``_``, and a backslash before either for itself."""
    parts = re.findall(r"\\[%_\\]|.", pattern, re.DOTALL)
    signs = {"%": ".*", "_": "."}
    text = "".join(re.escape(part[1:]) if len(part) == 2 else signs.get(part, re.escape(part)) for part in parts)
    return re.fullmatch(text, name, re.IGNORECASE | re.DOTALL) is not None
