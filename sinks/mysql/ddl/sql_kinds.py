"""What becomes of each kind of DDL at a MySQL-protocol target: the table ``SQL_KINDS``. Pure.

A kind's statement is made of the job and the table infos where they say it. For types that are not known, and most at a TiDB, it is TiDB's text.

Promises: an empty statement means that there is nothing to execute. ``losses`` lists what the target cannot hold.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from itertools import dropwhile, takewhile

from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.ddl_jobs import Job, JobType
from pyspark_tidb_binlog.schemas.ddl_tokens import QualifiedName, TokenKind, quote_name, rename_pairs, significant, text_of, tokenize
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.tableinfo import ColumnType
from pyspark_tidb_binlog.sinks.mysql.ddl.partitions import partition_change
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import DdlForm, Subject
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import create_table, timestamps_in_utc
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import (
    DdlStatement,
    Dialect,
    expression,
    plain_strings,
    reads_clock,
    without_features,
    without_if_not_exists,
)
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, account_name, table_name
from pyspark_tidb_binlog.sinks.routing.routes import TargetName


class Judged(Enum):
    """Ways to judge an earlier attempt of unknown outcome (``ddl_plan``)."""

    AGAIN = "a second time it does the same, because no rows were written since"
    CHANGES = "by its changes, all of which the definition shows"
    MADE = "a second time it reports what is there, which is compared then"
    GONE = "by whether anything of it is left"
    MOVED = "by the server's table ids: not idempotent, and the structure may look the same before and after"
    PARTITIONS_GONE = "by whether its partitions were there and are gone: of a table that never had them the rows may still be there"
    DIVIDED = "by the names of partitions; where they stay, a second time it does the same"


@dataclass(frozen=True, slots=True)
class SqlKind:
    """One kind of DDL."""

    judged: Judged
    statement: "Callable[[Subject, Dialect], DdlStatement | None] | None" = None
    """Without the text; None, or an answer None: TiDB's text."""
    at_tidb: bool = True
    """Whether a TiDB is given the statement, too, and not the text."""
    already_so: frozenset[int] = frozenset()
    """The server's errors that say that the target is so already."""


_EXISTS_DATABASE = frozenset({1007})
_GONE = frozenset({1008, 1051, 4091, 4092, 1049})
"""No such database, table, sequence or view."""
_TYPES = frozenset(ColumnType)


def _database(verb: str, subject: Subject, dialect: Dialect) -> DdlStatement:
    info = subject.job.db_info
    found = dialect.charset(info.charset, info.collate) if info else dialect.charset("", "")
    return DdlStatement(f"{verb} DATABASE {quote_name(subject.schema)} CHARACTER SET = {found.charset} COLLATE = {found.collate}")


def _on_table(verb: str, subject: Subject, dialect: Dialect) -> DdlStatement:
    schema, name = (subject.old.schema, subject.old.name) if subject.old else (subject.schema, subject.name)
    return DdlStatement(f"{verb} {table_name(schema, name)}")


def _sequence(verb: str, subject: Subject, dialect: Dialect) -> DdlStatement | None:
    """A restart is in the text alone."""
    if dialect.flavour is Flavour.MYSQL:
        return DdlStatement("", (f"{subject.label}: sequence left out, because MySQL has none",))
    made, numbers = _on_table(f"{verb} SEQUENCE", subject, dialect), subject.new.info.sequence if subject.new else None
    if numbers is None:
        return made if verb == "DROP" else None
    kept = f"CACHE {numbers.cache}" if numbers.cache else "NOCACHE"
    sql = (
        f"{made.sql} START WITH {numbers.start} INCREMENT BY {numbers.increment} MINVALUE {numbers.min_value} MAXVALUE {numbers.max_value} "
        f"{kept} {'CYCLE' if numbers.cycle else 'NOCYCLE'}"
    )
    words = [t.word or t.text for t in significant(subject.query)]
    if verb == "CREATE" or "RESTART" not in words:
        return DdlStatement(sql)
    after = dropwhile(lambda word: word in ("WITH", "="), words[words.index("RESTART") + 1 :])
    number = "".join(takewhile(lambda word: word in "+-" or word.isdigit(), after))
    return DdlStatement(f"{sql} RESTART WITH {number or numbers.start}")


def _create(subject: Subject, dialect: Dialect) -> DdlStatement | None:
    new = subject.new
    if new is None or any(c.tp not in _TYPES for c in visible(new.info)):
        return None  # of a later release: its text says what it is
    return create_table(new.schema, replace(new.info, name=new.name), dialect)


_ALGORITHMS = ("UNDEFINED", "MERGE", "TEMPTABLE")


def _view(subject: Subject, dialect: Dialect) -> DdlStatement | None:
    """The view with the names that the upstream has resolved: a text means the tables of its session's database. CHECK OPTION is left out, because TiDB stores one that nobody wrote."""
    new = subject.new
    view = new.info.view if new else None
    if new is None or view is None or not view.select:
        return None  # recorded before views were kept
    replaces = any((t.schema, t.name.lower()) == (new.schema, new.name.lower()) for t in subject.before)
    columns = ", ".join(quote_name(c.name) for c in new.info.public_columns())
    return DdlStatement(
        f"CREATE {'OR REPLACE ' * replaces}ALGORITHM = {_ALGORITHMS[view.algorithm]} "
        f"DEFINER = {account_name(view.user, view.host) if view.user else 'CURRENT_USER'} SQL SECURITY {'INVOKER' if view.invoker else 'DEFINER'} "
        f"VIEW {table_name(new.schema, new.name)} ({columns}) AS {expression(view.select)}"
    )


def _partitions(subject: Subject, dialect: Dialect) -> DdlStatement | None:
    old = subject.old
    if old is None or subject.former is None or subject.info is None:
        return None
    clause = partition_change(subject.former, subject.info, subject.job.kind.effect, dialect)
    sql = f"ALTER TABLE {table_name(old.schema, old.name)} {clause}" if clause else ""
    # The target may lack a column of the expression.
    return DdlStatement(sql, by_infos=not clause.startswith("PARTITION BY") or len(old.info.columns) == len(subject.former.columns))


def _exchange(subject: Subject, dialect: Dialect) -> DdlStatement | None:
    """The exchanged partition is the one that has the unpartitioned table's id afterwards."""
    info, old = subject.info, subject.old
    plain = next((t for t in subject.before if t.table_id == subject.job.table_id), None)
    moved = next((p.name for p in info.partitions if p.id == subject.job.table_id), None) if info else None
    if old is None or plain is None or moved is None:
        return None
    tables = table_name(old.schema, old.name), table_name(plain.schema, plain.name)
    return DdlStatement(f"ALTER TABLE {tables[0]} EXCHANGE PARTITION {quote_name(moved)} WITH TABLE {tables[1]}")


def _rename(subject: Subject, dialect: Dialect) -> DdlStatement | None:
    """RENAME TABLE of all pairs, qualified with their databases, in the order of the text, which matters for a swap through a third name; empty if no name changes."""
    now = {t.table_id: TargetName(t.schema, t.name) for t in subject.before}
    new = {t.table_id: TargetName(t.schema, t.name) for t in subject.after}
    if subject.job.type == JobType.RENAME_TABLE:
        moved = [(now[i], new[i]) for i in now if i in new][:1]
        return _renames(moved, dialect) if moved else None
    pairs = rename_pairs(subject.query)
    ids = [info.id for info in subject.job.multiple_table_infos]
    if not pairs or len(ids) != len(pairs):
        return None

    def between(name: QualifiedName, here: TargetName) -> TargetName:
        return subject.routes.target(name.schema, name.name) if name.schema else TargetName(here.schema, name.name)

    # Only names in between are from the text, which does not say what the session's database was.
    last, written = {i: place for place, i in enumerate(ids)}, []
    for place, (i, (before, after)) in enumerate(zip(ids, pairs, strict=True)):
        if i in new:
            was = now.get(i) or between(before, new[i])
            now[i] = new[i] if place == last[i] else between(after, was)
            written.append((was, now[i]))
    return _renames(written, dialect)


def _renames(pairs: Sequence[tuple[TargetName, TargetName]], dialect: Dialect) -> DdlStatement:
    """RENAME TABLE without the pairs that are one name at the target, which a server refuses: the table exists."""
    names = [(table_name(a.schema, a.name), table_name(b.schema, b.name)) for a, b in pairs]
    changing = [(a, b) for a, b in names if not same_name(a, b, dialect)]
    return DdlStatement("RENAME TABLE " + ", ".join(f"{a} TO {b}" for a, b in changing) if changing else "")


def same_name(one: str, other: str, dialect: Dialect) -> bool:
    """Whether two names of tables, with their databases, are one at the target."""
    return one == other or (dialect.folds_names and one.lower() == other.lower())


SQL_KINDS: Mapping[int, SqlKind] = {
    JobType.CREATE_SCHEMA: SqlKind(Judged.MADE, partial(_database, "CREATE"), already_so=_EXISTS_DATABASE),
    JobType.SCHEMA_CHARSET: SqlKind(Judged.AGAIN, partial(_database, "ALTER")),
    JobType.DROP_SCHEMA: SqlKind(
        Judged.GONE, lambda subject, _: DdlStatement(f"DROP DATABASE {quote_name(subject.schema)}"), already_so=_GONE
    ),
    JobType.CREATE_TABLE: SqlKind(Judged.MADE, _create, at_tidb=False),
    JobType.CREATE_TABLES: SqlKind(Judged.MADE),
    JobType.CREATE_VIEW: SqlKind(Judged.MADE, _view),
    JobType.CREATE_SEQUENCE: SqlKind(Judged.MADE, partial(_sequence, "CREATE"), at_tidb=False),
    JobType.ALTER_SEQUENCE: SqlKind(Judged.AGAIN, partial(_sequence, "ALTER"), at_tidb=False),
    JobType.DROP_TABLE: SqlKind(Judged.GONE, partial(_on_table, "DROP TABLE"), already_so=_GONE),
    JobType.DROP_VIEW: SqlKind(Judged.GONE, partial(_on_table, "DROP VIEW"), already_so=_GONE),
    JobType.DROP_SEQUENCE: SqlKind(Judged.GONE, partial(_sequence, "DROP"), already_so=_GONE),
    JobType.TRUNCATE_TABLE: SqlKind(Judged.AGAIN, partial(_on_table, "TRUNCATE TABLE")),
    JobType.RENAME_TABLE: SqlKind(Judged.MOVED, _rename),
    JobType.RENAME_TABLES: SqlKind(Judged.MOVED, _rename),
    JobType.EXCHANGE_PARTITION: SqlKind(Judged.MOVED, _exchange, at_tidb=False),
    JobType.ADD_PARTITION: SqlKind(Judged.CHANGES, _partitions, at_tidb=False),
    JobType.DROP_PARTITION: SqlKind(Judged.PARTITIONS_GONE, _partitions, at_tidb=False),
    JobType.TRUNCATE_PARTITION: SqlKind(Judged.AGAIN, _partitions, at_tidb=False),
    JobType.REORGANIZE_PARTITION: SqlKind(Judged.DIVIDED, _partitions, at_tidb=False),
    JobType.ALTER_PARTITIONING: SqlKind(Judged.DIVIDED, _partitions, at_tidb=False),
    JobType.REMOVE_PARTITIONING: SqlKind(Judged.DIVIDED, _partitions, at_tidb=False),
}
"""By ``JobType``; others are changes that the definition shows (``alteration``), or texts that are not known."""

TIDB_ONLY: Mapping[int, str] = {
    JobType.CACHE_TABLE: "CACHE left out",
    **dict.fromkeys((JobType.TABLE_ATTRIBUTES, JobType.PARTITION_ATTRIBUTES), "attributes left out"),
    **dict.fromkeys(
        (JobType.CREATE_PLACEMENT, JobType.PARTITION_PLACEMENT, JobType.SCHEMA_PLACEMENT, JobType.TABLE_PLACEMENT),
        "placement policy left out",
    ),
    JobType.CREATE_RESOURCE_GROUP: "resource group left out",
}
"""What a target lacks without a job that changes nothing that it can hold (``JobEffect.NONE``)."""

_OTHER = SqlKind(Judged.CHANGES)


def sql_kind(job: Job) -> SqlKind:
    """The row of a job."""
    return SQL_KINDS.get(job.type, _OTHER)


def statements_of(subject: Subject, dialect: Dialect, *, restored: bool) -> tuple[DdlStatement, ...]:
    """The statements for the target, one for each table of CREATE TABLES, else one. ``restored``: the text was written by TiDB's parser, not by a user."""
    if subject.job.type == JobType.CREATE_TABLES:
        return tuple(create_table(t.schema, replace(t.info, name=t.name), dialect) for t in subject.after)
    return (rewrite(subject, dialect, restored=restored),)


def rewrite(subject: Subject, dialect: Dialect, *, restored: bool) -> DdlStatement:
    """The statement of a job that has one."""
    kind = sql_kind(subject.job)
    by_text = dialect.flavour is Flavour.TIDB and subject.given.form is DdlForm.TEXT
    by_infos = kind.at_tidb or not by_text or reads_clock(subject.query)
    if kind.statement is not None and by_infos and (made := kind.statement(subject, dialect)) is not None:
        return made
    whole = tokenize(subject.query.strip().rstrip("; "), backslash_escapes=not restored)
    if by_text:
        sql = text_of(plain_strings(without_if_not_exists(whole), restored=restored))
        return DdlStatement(sql, (), tuple(_afterwards(subject)), subject.job.type == JobType.SET_TIFLASH_REPLICA, by_infos=False)
    only_tidb = any(t.kind is TokenKind.FEATURE_OPEN and t.text.startswith("/*T!") for t in whole)
    losses = (f"{subject.label}: what only TiDB has was left out",) if only_tidb else ()
    sql = text_of(plain_strings(without_features(whole), restored=restored)).strip().rstrip("; \t\n")
    return DdlStatement(sql, losses, by_infos=False)


def _afterwards(subject: Subject) -> Iterator[str]:
    """Statements that a TiDB is given after the text: literals in UTC, and no TTL, because the deletes of the upstream's TTL jobs arrive as binlogs."""
    new = subject.new
    if (
        new is not None
        and subject.job.type == JobType.CREATE_TABLE
        and (sql := timestamps_in_utc(table_name(new.schema, new.name), new.info))
    ):
        yield sql
    if new is not None and new.info.ttl and (subject.old is None or subject.old.info.ttl != new.info.ttl):
        yield f"ALTER TABLE {table_name(new.schema, new.name)} TTL_ENABLE = 'OFF'"


def silent_losses(history: SchemaHistory, after: int, upto: int) -> tuple[str, ...]:
    """Losses of the jobs with ``after < version <= upto`` that have no statement for the target; CACHE does not even have a binlog."""
    jobs = (j for j in history.passed_between(after, upto) if j.type in TIDB_ONLY)
    texts = (f"{'.'.join(filter(None, (j.schema_name, j.table_name)))}: {TIDB_ONLY[j.type]}" for j in jobs)
    return tuple(dict.fromkeys(texts))
