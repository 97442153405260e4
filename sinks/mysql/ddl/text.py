"""The statement of a DDL for the target: from the job and the table infos where they say it, else TiDB's text with names and words of the target.

    databases, renames, DROP, TRUNCATE     from the job
    CREATE TABLE, partitions               from the table infos (``table_sql``), except at a TiDB
    views, sequences, types that are not   TiDB's text without its feature comments
    known, and most at a TiDB (``tidb``)

Promises: pure. An empty text means that there is nothing to execute. ``losses`` lists what the target cannot hold.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.ddl_jobs import JobEffect, On
from pyspark_tidb_binlog.schemas.ddl_tokens import QualifiedName, Token, TokenKind, quote_name, rename_pairs, text_of, tokenize
from pyspark_tidb_binlog.schemas.history import Job, JobType, SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnType, TableInfo
from pyspark_tidb_binlog.sinks.engine.choice import schema_of
from pyspark_tidb_binlog.sinks.engine.frozen import NONE_FROZEN, FrozenTables
from pyspark_tidb_binlog.sinks.engine.segments import DdlStep
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import (
    Dialect,
    Losses,
    Rewritten,
    Tokens,
    plain_strings,
    quote_reserved,
    quoted,
    strip,
    words,
)
from pyspark_tidb_binlog.sinks.mysql.ddl.defaults import declare
from pyspark_tidb_binlog.sinks.mysql.ddl.delivery import NO_OUTCOMES, DdlDelivery, DdlForm, Outcomes, given, named_by_infos
from pyspark_tidb_binlog.sinks.mysql.ddl.routed_text import routed_text, spelled_text, table_names
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import create_table, partition_change
from pyspark_tidb_binlog.sinks.mysql.ddl.tidb import is_tiflash_replica, settle_boundaries, settle_defaults, tidb_tokens
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.routing.replicated import DdlFate
from pyspark_tidb_binlog.sinks.routing.routes import NO_ROUTES, Routes, TargetName

_TYPES = frozenset(ColumnType)
_ON_PARTITIONS = frozenset({JobEffect.ADDS_PARTITION, JobEffect.DROPS_PARTITION, JobEffect.EMPTIES_PARTITION, JobEffect.DIVIDES})


@dataclass(frozen=True, slots=True)
class Subject:
    """What a DDL operates on: the job, and its tables as they are on the target before and after it."""

    job: Job
    query: str
    schema: str
    """Database to USE; empty if the job has none."""
    name: str
    before: tuple[TableAt, ...]
    """The tables it changes, before the job; empty if it only creates tables."""
    after: tuple[TableAt, ...]
    """The tables it changes, after the job."""
    given: DdlDelivery = field(default=DdlDelivery(DdlForm.TEXT))
    """The form in which it is sent."""
    routes: Routes = NO_ROUTES
    """From the names in the text to those at the target."""
    home: str = ""
    """With routes: the database upstream to which names without one belong."""
    spelled: Mapping[tuple[str, str], TargetName] = field(default_factory=dict)
    """By database and name in lower case: tables that the text spells otherwise than they were made. Upstream's names."""
    dropped: TableAt | None = None
    """Of RECOVER TABLE: the table as it was when it was dropped, under its name on the target."""
    lacking: frozenset[str] = frozenset()
    """Lower-case names of the expression indexes that ``old`` has upstream and the target's table is known to lack."""
    former: TableInfo | None = None
    """The job's own table before the job, upstream."""

    @property
    def label(self) -> str:
        """``schema.table`` for messages."""
        return f"{self.schema}.{self.name}" if self.name else self.schema

    @property
    def info(self) -> TableInfo | None:
        """The job's own table after the job, upstream."""
        return self.job.table_info

    @property
    def old(self) -> TableAt | None:
        """The job's own table on the target before the job."""
        wanted = self.job.table_info.id if self.job.table_info else self.job.table_id
        by_id = {t.table_id: t for t in self.before}
        return by_id.get(wanted) or by_id.get(self.job.table_id)

    @property
    def new(self) -> TableAt | None:
        """The job's own table on the target after the job."""
        wanted = self.job.table_info.id if self.job.table_info else self.job.table_id
        return next((t for t in self.after if t.table_id == wanted), None)


def subject_of(
    step: DdlStep,
    history: SchemaHistory,
    frozen: FrozenTables = NONE_FROZEN,
    routes: Routes = NO_ROUTES,
    outcomes: Outcomes = NO_OUTCOMES,
) -> Subject:
    """Look up the subject of ``step`` in the history; tables with ``routes`` are as on the target.

    ``frozen``: the frozen tables; ``outcomes``: of earlier jobs, for RECOVER TABLE.
    """
    job = step.job
    ids = [i for i in history.tables_of_job(job) if i not in step.decision.strangers]
    before = tuple(t for i in ids if (t := step.before.table(i, history)) is not None)
    coming = [t for i in ids if (t := history.table_at(i, job.version)) is not None]

    def place(schema: str, name: str) -> TargetName:
        other = history.find(schema, name, job.version)
        return routes.target(other.schema, other.name) if other is not None else routes.target(schema, name)

    after = tuple(referring(t, place) for t in coming)
    restored = history.restored_by(job)
    delivery = _delivery(step, given(job, step.query, history, frozen, routes, outcomes))
    schema = schema_of(step, history)
    spelled = (
        {} if job.kind.effect is JobEffect.RENAMES else _spelled_otherwise(step.query, schema, (*before, *coming), history, job.version)
    )
    subject = Subject(
        job, step.query, schema, _name_of(job, before), before, after, delivery, spelled=spelled, dropped=restored and restored[0]
    )
    own = next((t.table_id for t in (subject.old, subject.new) if t is not None), 0)
    subject = replace(subject, former=next((t.info for t in before if t.table_id == own), None))
    return _routed(subject, routes) if routes else subject


def referring(table: TableAt, place: Callable[[str, str], TargetName]) -> TableAt:
    """``table`` with what its foreign keys refer to as it is called at the target; ``place``: by database and name upstream."""
    keys = []
    for key in table.info.foreign_keys:
        to = place(key.ref_schema or table.schema, key.ref_table)
        keys.append(replace(key, ref_schema=to.schema, ref_table=to.name))
    return replace(table, info=replace(table.info, foreign_keys=tuple(keys))) if keys else table


def _spelled_otherwise(
    query: str, home: str, known: Sequence[TableAt], history: SchemaHistory, version: int
) -> dict[tuple[str, str], TargetName]:
    """Tables that the text spells otherwise than they were made; ``known``: those of the job."""
    mine = {(t.schema.lower(), t.name.lower()): t for t in known}
    found = {}
    for name in table_names(query):
        key = (name.schema or home).lower(), name.name.lower()
        table = mine.get(key) or history.find(*key, version)
        if table is not None and (table.name != name.name or (name.schema and table.schema != name.schema)):
            found[key] = TargetName(table.schema, table.name)
    return found


def _routed(subject: Subject, routes: Routes) -> Subject:
    """``subject`` under the names of the target; a rename between two names that are one there needs no statement."""
    schema, delivery = routes.database(subject.schema), subject.given
    name = subject.name
    if subject.before or subject.after:
        own = routes.target(subject.schema, subject.name)
        schema, name = own.schema, own.name
    before, after = (tuple(map(routes.moved, tables)) for tables in (subject.before, subject.after))
    names = [[(t.table_id, t.schema, t.name) for t in tables] for tables in (before, after)]
    if subject.job.type == JobType.RENAME_TABLE and delivery.form is DdlForm.TEXT and names[0] == names[1]:
        delivery = DdlDelivery(DdlForm.NOTHING, "both names are the same table at the target")
    if delivery.form is DdlForm.TEXT and any(map(routes.columns_of, (*subject.before, *subject.after))):
        delivery = _narrowed_delivery(subject.job, before, after)
    found = replace(
        subject, schema=schema, name=name, before=before, after=after, dropped=subject.dropped and routes.moved(subject.dropped)
    )
    return replace(found, given=delivery, routes=routes, home=subject.schema)


def _narrowed_delivery(job: Job, before: Sequence[TableAt], after: Sequence[TableAt]) -> DdlDelivery:
    """The form of a DDL on a table with a list of columns: its text may name others."""
    if named_by_infos(job):
        return DdlDelivery(DdlForm.TEXT)
    if [replace(t.info, name="") for t in before] == [replace(t.info, name="") for t in after]:
        return DdlDelivery(DdlForm.NOTHING, "it does not change the columns that are replicated")
    return DdlDelivery(DdlForm.INFOS, "only some columns of the table are replicated")


def _delivery(step: DdlStep, found: DdlDelivery) -> DdlDelivery:
    decision = step.decision
    if decision.fate is DdlFate.DERIVED and found.form is DdlForm.TEXT:
        return DdlDelivery(DdlForm.INFOS, decision.why)
    if found.form is DdlForm.TEXT and step.job.type == JobType.CREATE_TABLE and _likes_unplaced(step.query):
        return DdlDelivery(DdlForm.INFOS, "the table after LIKE is in the session's database, which is not known")
    return DdlDelivery(DdlForm.REFUSED, decision.why) if decision.fate is DdlFate.REFUSED else found


def _name_of(job: Job, before: Sequence[TableAt]) -> str:
    if job.table_info is not None:
        return job.table_info.name
    return next((t.name for t in before if t.table_id == job.table_id), job.table_name)


def rewrite(subject: Subject, dialect: Dialect, *, restored: bool) -> Rewritten:
    """The statement for the target. ``restored``: the text was written by TiDB's parser, not by a user."""
    losses = Losses(subject.label)
    subject = with_routed_text(subject, restored=restored)
    if dialect.flavour is Flavour.TIDB:
        named = _certain(subject, dialect) if subject.routes or subject.job.type == JobType.RECOVER_TABLE else None
        if named is not None:
            return Rewritten(named)
        tokens = settle_boundaries(tidb_tokens(subject.query, restored=restored), subject.info)
        info, old = subject.info, subject.old
        settled, added = settle_defaults(plain_strings(tokens, restored=restored), info, old.info if old else None, dialect.flavour)
        then = declare(quoted(old.schema, old.name), added, info, dialect) if added and old is not None and info is not None else ""
        return Rewritten(text_of(settled).strip(), (), then, is_tiflash_replica(tokens))
    if (made := _from_infos(subject, dialect)) is not None:
        return made
    certain = _certain(subject, dialect)
    if certain is not None:
        return Rewritten(certain)
    if subject.job.kind.on is On.SEQUENCE and dialect.flavour is Flavour.MYSQL:
        losses.add("sequence left out, because MySQL has none")
        return Rewritten("", tuple(losses.texts))
    tokens = _without_end(without_features(tokenize(subject.query, backslash_escapes=not restored), losses))
    return Rewritten(text_of(plain_strings(quote_reserved(tokens), restored=restored)), tuple(losses.texts))


def _from_infos(subject: Subject, dialect: Dialect) -> Rewritten | None:
    """The statement of a job that makes a table or changes partitions; None for the others."""
    job, new, old = subject.job, subject.new, subject.old
    if job.type == JobType.CREATE_TABLE and new is not None:
        if any(c.tp not in _TYPES for c in visible(new.info)):
            return None  # of a later release: its text says what it is
        return create_table(new.schema, replace(new.info, name=new.name), dialect)
    if job.kind.effect not in _ON_PARTITIONS or old is None or subject.former is None or subject.info is None:
        return None
    clause = partition_change(subject.former, subject.info, job.kind.effect, dialect)
    # Columns may have other names at the target.
    sql = f"ALTER TABLE {quoted(old.schema, old.name)} {clause}" if clause else ""
    return Rewritten(sql, by_infos=not clause.startswith("PARTITION BY"))


def with_routed_text(subject: Subject, *, restored: bool) -> Subject:
    """``subject`` with the names of the target in its text. RENAME TABLES keeps it: its names are read in pairs."""
    if subject.spelled:
        query = spelled_text(subject.query, subject.spelled, subject.home or subject.schema, restored=restored)
        subject = replace(subject, query=query, spelled={})
    if not subject.routes or subject.job.type == JobType.RENAME_TABLES:
        return subject
    return replace(subject, query=routed_text(subject.query, subject.routes, subject.home, restored=restored))


def _certain(subject: Subject, dialect: Dialect) -> str | None:
    """The statement for job types that determine it without the text; None for the others."""
    job = subject.job
    found = dialect.charset(job.db_info.charset, job.db_info.collate) if job.db_info else dialect.charset("", "")
    database = f"{quote_name(subject.schema)} CHARACTER SET = {found.charset} COLLATE = {found.collate}"
    name = quoted(subject.old.schema, subject.old.name) if subject.old else quoted(subject.schema, subject.name)
    match job.type:
        case JobType.CREATE_SCHEMA:
            return f"CREATE DATABASE {database}"
        case JobType.SCHEMA_CHARSET:
            return f"ALTER DATABASE {database}"
        case JobType.DROP_SCHEMA:
            return f"DROP DATABASE {quote_name(subject.schema)}"
        case JobType.DROP_TABLE:
            return f"DROP TABLE {name}"
        case JobType.DROP_VIEW:
            return f"DROP VIEW {name}"
        case JobType.DROP_SEQUENCE if dialect.flavour is Flavour.MARIADB:
            return f"DROP SEQUENCE {name}"
        case JobType.TRUNCATE_TABLE:
            return f"TRUNCATE TABLE {name}"
        case JobType.RENAME_TABLE | JobType.RENAME_TABLES:
            return _rename(subject, dialect)
        case JobType.EXCHANGE_PARTITION:
            return _exchange(subject)
        case JobType.RECOVER_TABLE:
            return _recover(subject)
    return None


def _recover(subject: Subject) -> str:
    """By the table's name: RECOVER TABLE BY JOB has the number of an upstream job. Only FLASHBACK takes a new name."""
    old, new = subject.dropped, subject.new
    if old is None or new is None:
        return ""
    name = quoted(old.schema, old.name)
    return f"RECOVER TABLE {name}" if old.name == new.name else f"FLASHBACK TABLE {name} TO {quote_name(new.name)}"


def _exchange(subject: Subject) -> str | None:
    """The exchanged partition is the one that has the unpartitioned table's id afterwards."""
    info, old = subject.info, subject.old
    plain = next((t for t in subject.before if t.table_id == subject.job.table_id), None)
    moved = next((p.name for p in info.partitions if p.id == subject.job.table_id), None) if info else None
    if old is None or plain is None or moved is None:
        return None
    return (
        f"ALTER TABLE {quoted(old.schema, old.name)} EXCHANGE PARTITION {quote_name(moved)} WITH TABLE {quoted(plain.schema, plain.name)}"
    )


def _rename(subject: Subject, dialect: Dialect) -> str | None:
    """All pairs qualified with their databases, in the order of the text, which matters for a swap through a third name; empty if no name changes."""
    old = {t.table_id: t for t in subject.before}
    new = {t.table_id: t for t in subject.after}
    if subject.job.type == JobType.RENAME_TABLE:
        moved = [(old[i], new[i]) for i in old if i in new][:1]
        return _renames([(quoted(a.schema, a.name), quoted(b.schema, b.name)) for a, b in moved], dialect) if moved else None
    pairs = rename_pairs(subject.query)
    ids = [info.id for info in subject.job.multiple_table_infos]
    if not pairs or len(ids) != len(pairs):
        return None
    here = [old[i].schema for i, (name, _) in zip(ids, pairs, strict=True) if i in old and not name.schema]
    session = here[0] if here else subject.schema

    def full(name: QualifiedName) -> str:
        if subject.routes:
            to = subject.routes.target(name.schema or subject.home, name.name)
            return quoted(to.schema, to.name)
        return quoted(name.schema or session, name.name)

    spelled = {name.lower(): name for name in (quoted(t.schema, t.name) for t in subject.before)}
    written: list[tuple[str, str]] = []
    for i, (a, b) in zip(ids, pairs, strict=True):
        if i in old or i in new:
            written.append((spelled.pop(full(a).lower(), full(a)), full(b)))
            spelled[full(b).lower()] = full(b)
    return _renames(written, dialect)


def _renames(pairs: Sequence[tuple[str, str]], dialect: Dialect) -> str:
    """Without the pairs that are one name at the target, which a server refuses: the table exists."""
    changing = [(a, b) for a, b in pairs if not same_name(a, b, dialect)]
    return "RENAME TABLE " + ", ".join(f"{a} TO {b}" for a, b in changing) if changing else ""


def same_name(one: str, other: str, dialect: Dialect) -> bool:
    """Whether two names of tables, with their databases, are one at the target."""
    return one == other or (dialect.folds_names and one.lower() == other.lower())


_FEATURE_LOSSES = {
    "AUTO_RANDOM": "AUTO_RANDOM left out",
    "TTL": "TTL left out",
    "PLACEMENT": "placement policy left out",
}


def without_features(tokens: Sequence[Token], losses: Losses) -> Tokens:
    """The tokens without TiDB's feature comments; MySQL's version comments are kept."""
    out: Tokens = []
    inside: Tokens | None = None
    for token in tokens:
        if inside is None and token.kind is TokenKind.FEATURE_OPEN and token.text.startswith("/*T!"):
            inside = []
        elif inside is None:
            out.append(token)
        elif token.kind is TokenKind.FEATURE_CLOSE:
            _note_feature(inside, losses)
            inside = None
        else:
            inside.append(token)
    return [t for t in out if t.kind is not TokenKind.COMMENT]


def _note_feature(inside: Tokens, losses: Losses) -> None:
    spoken = words(inside)
    for word, loss in _FEATURE_LOSSES.items():
        if word in spoken and "REMOVE" not in spoken:
            losses.add(loss)
    if "SHARD_ROW_ID_BITS" in spoken and next((t.text for t in inside if t.kind is TokenKind.NUMBER), "0") != "0":
        losses.add("SHARD_ROW_ID_BITS left out")


def _without_end(tokens: Tokens) -> Tokens:
    tokens = strip(tokens)
    while tokens and tokens[-1].text == ";":
        tokens = strip(tokens[:-1])
    return tokens


def _like_source(tokens: Tokens) -> str:
    """The name after ``LIKE``, with or without parentheses; empty if it is not a CREATE TABLE ... LIKE."""
    solid = [t for t in tokens if not t.blank]
    at = next((i for i, t in enumerate(solid) if t.word == "LIKE"), 0)
    before = [t.text for t in solid[:at]]
    if not at or before.count("(") > 1 or (before.count("(") == 1 and before[-1] != "("):
        return ""
    source = [t.text for t in solid[at + 1 : at + 4]]
    return "".join(source[:3]) if source[1:2] == ["."] else source[0]


def _likes_unplaced(query: str) -> bool:
    """Whether it is a CREATE TABLE db.t LIKE s: ``s`` is of the session's current database, which no binlog or job has.

    Where ``t`` has no database either, both are of the job's.
    """
    solid = [t for t in tokenize(query) if not t.blank and t.kind is not TokenKind.COMMENT]
    like = next((i for i, t in enumerate(solid) if t.word == "LIKE"), 0)
    source = solid[like + 1 :]
    return bool(_like_source(solid)) and any(t.text == "." for t in solid[:like]) and [t.text for t in source[1:2]] != ["."]


_LEFT_OUT = {
    JobType.CACHE_TABLE: "CACHE left out",
    JobType.TABLE_ATTRIBUTES: "attributes left out",
    JobType.PARTITION_ATTRIBUTES: "attributes left out",
    JobType.CREATE_PLACEMENT: "placement policy left out",
    JobType.PARTITION_PLACEMENT: "placement policy left out",
    JobType.SCHEMA_PLACEMENT: "placement policy left out",
    JobType.TABLE_PLACEMENT: "placement policy left out",
    JobType.CREATE_RESOURCE_GROUP: "resource group left out",
}


def silent_losses(history: SchemaHistory, after: int, upto: int) -> tuple[str, ...]:
    """Losses of the jobs with ``after < version <= upto`` that have no statement for the target; CACHE does not even have a binlog."""
    jobs = (j for j in history.passed_between(after, upto) if j.type in _LEFT_OUT)
    texts = (f"{'.'.join(filter(None, (j.schema_name, j.table_name)))}: {_LEFT_OUT[JobType(j.type)]}" for j in jobs)
    return tuple(dict.fromkeys(texts))
