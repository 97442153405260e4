"""Peculiarities of servers in the way of a DDL's statement: the table ``QUIRKS``. [db]

A row with error numbers is asked when the server has refused the statement with one of them. A row without them is asked before the statement is sent, because the
server would execute it and do something else than TiDB.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.ddl_jobs import JobEffect
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name, quote_string
from pyspark_tidb_binlog.schemas.errors import ApplyError, ServerRefused
from pyspark_tidb_binlog.schemas.history import JobType, TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, TableInfo
from pyspark_tidb_binlog.sinks.mysql.ddl.nearest_form import (
    MOST_IN_ROW,
    NearestForm,
    computing_less,
    names_in,
    off_page,
    with_prefixes,
    with_server_names,
    with_texts,
    without_comments,
    without_defaults,
)
from pyspark_tidb_binlog.sinks.mysql.ddl.snapshots import SchemaSnapshot
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import DdlDelivery, DdlForm, Subject
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import column_definition
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import GBK, UPSTREAM_DEFAULT, Dialect, is_text_or_words
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, account_name, table_name
from pyspark_tidb_binlog.sinks.mysql.structure import read_tables, with_instant_columns
from pyspark_tidb_binlog.sinks.mysql.target import Target
from pyspark_tidb_binlog.sinks.mysql.transactions import with_settings

_GIVES_KEYS = "sql_generate_invisible_primary_key"
EXISTS_TABLE = 1050
_KEY_TOO_LONG = 1071
_SNAPSHOT_TOO_OLD = 8055
FORCE = ", FORCE"
_CANNOT_CREATE = 1005
_OF_DEFAULTS = frozenset({1067, 1101})
"""A default that is not valid, or that the type cannot have."""
_OF_EXPRESSIONS = frozenset({1054, 1064, 1128, 1146, 1305, 1582, 1901, 1903, 1907, 3102, 3105, 3106, 3757, 3763, *range(3770, 3775)})
"""The server lacks a function, sequence, column or syntax, or does not take it here."""
_OF_ROWS = frozenset({1022, 1062, 1138, 1264, 1265, 1292, 1366, 1406, 1451, 1452, 4025})
_OF_NAMES = frozenset({1049, 1050, 1060, 1061, 1146})
_OF_RIGHTS = frozenset({1044, 1142, 1143, 1227, 1370})
_OF_ROOM = frozenset({1016, 1017, 1021, 1026, 1030, 1034, 1037, 1038, 1041, 1114, 1290, 1712, 1799, 1878})
OF_NO_DEFINITION = _OF_ROWS | _OF_NAMES | _OF_RIGHTS | _OF_ROOM
"""A person repairs this: nothing of the definition is left out."""
_NO_DEFINER, _NO_GRANTS = 1449, 1141
_NOT_SO = frozenset({1227, 3750})
"""The account may not choose; the server requires a key."""


@dataclass(frozen=True, slots=True)
class SentDdl:
    """A statement on its way to the target."""

    session: Target
    subject: Subject
    dialect: Dialect
    sql: str = ""
    error: ApplyError | None = None
    """The server's refusal; None: it was not sent yet."""
    now: SchemaSnapshot | None = None
    """The target's tables, as long as its intent is not recorded."""
    number: int | None = None
    """Which of the subject's tables it creates; None: it creates none."""
    bare: bool = False
    """It has only what rows need."""

    @property
    def made(self) -> TableAt | None:
        """The table that it creates."""
        return self.subject.after[self.number] if self.number is not None else None

    @property
    def table(self) -> TableAt | None:
        """The definition that it is made of."""
        return self.made or self.subject.new

    @property
    def words(self) -> str:
        """First sentence of the server's refusal."""
        return self.error.said.partition(". ")[0] if self.error else ""

    @property
    def coming(self) -> list[ColumnInfo]:
        """The columns that it makes or changes."""
        old = None if self.made else self.subject.old
        same = {replace(c, offset=0) for c in old.info.columns} if old else set[ColumnInfo]()
        return [c for c in visible(self.table.info) if replace(c, offset=0) not in same] if self.table else []

    def blamed(self, columns: Iterable[ColumnInfo]) -> list[ColumnInfo]:
        """Columns that the message names, directly or in their expression. For a bare table, if none is named, all."""
        columns = list(columns)
        found = [one or other for one, other in re.findall(r"`((?:[^`]|``)+)`|'((?:[^']|'')+)'", self.words)]
        quoted = {name.lower() for text in found for name in (text, text.rpartition(".")[2])}
        named = [c for c in columns if c.name.lower() in quoted or names_in(c.generated_expr or str(c.default)) & quoted]
        return named or (columns if self.bare else [])


@dataclass(frozen=True, slots=True)
class Around:
    """Remedy: what is done around a statement."""

    first: tuple[str, ...] = ()
    """Statements before the intent is recorded."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Session variables with which it is executed; after a refusal: executed again."""
    sql: str = ""
    """The statement in its place."""
    subject: Subject | None = None
    """What the statements in its place are made of: the same tables in a simpler form."""
    losses: tuple[str, ...] = ()
    todo: str = ""
    """What a person does, if nothing else helps."""


@dataclass(frozen=True, slots=True)
class Quirk:
    """One peculiarity."""

    around: Callable[[SentDdl], Around | None]
    """None: it does not apply to the statement."""
    errors: Collection[int] = ()
    """Of the server's refusal; none: it refuses nothing."""
    at: Flavour | None = None
    """None: at every server."""

    def concerns(self, ddl: SentDdl) -> bool:
        """Whether it may apply."""
        return self.at in (None, ddl.dialect.flavour) and (ddl.error.errno in self.errors if ddl.error else not self.errors)


def around(ddl: SentDdl) -> Around:
    """Remedies of all rows before the statement is sent, or of the first row that applies to its refusal."""
    found = (one for row in QUIRKS if row.concerns(ddl) and (one := row.around(ddl)) is not None)
    if ddl.error:
        return next(found, Around())
    return reduce(lambda a, b: Around((*a.first, *b.first), {**a.settings, **b.settings}), found, Around())


def execute(ddl: SentDdl) -> None:
    """Execute it with the settings of the table, and once more with those for its refusal."""
    with with_settings(ddl.session, around(ddl).settings):
        try:
            ddl.session.execute(ddl.sql)
        except ServerRefused as error:
            if not (settings := around(replace(ddl, error=error)).settings):
                raise
            try:
                with with_settings(ddl.session, settings):
                    ddl.session.execute(ddl.sql)
            except ApplyError as again:
                raise error if again.errno in _NOT_SO else again from again


def _key_not_given(ddl: SentDdl) -> Around | None:
    """MySQL adds ``my_row_id`` to a table without a primary key, but not where a column has that name or AUTO_INCREMENT, or a DROP needs it."""
    of_others = ddl.error and ddl.error.errno == 1235 and f"@@{_GIVES_KEYS}" not in ddl.error.words
    return None if of_others else Around(settings={_GIVES_KEYS: "0"})


def _key_given(ddl: SentDdl) -> Around | None:
    """The key that MySQL has added is in the way of the upstream's own, which replaces it."""
    old = ddl.subject.old
    if old is None:
        return None
    there = read_tables(ddl.session, [(old.schema, old.name)]).get((old.schema, old.name))
    head = f"ALTER TABLE {table_name(old.schema, old.name)} "
    primary = there is not None and any(key.primary for key in there.unique_keys)
    return None if primary else Around(sql=ddl.sql.replace(head, f"{head}DROP COLUMN `my_row_id`, ", 1))


def _instant_columns(ddl: SentDdl) -> Around | None:
    """MySQL exchanges no partition with a table with such columns: it is rebuilt, before the intent because it then has another id."""
    if ddl.subject.job.type != JobType.EXCHANGE_PARTITION or ddl.now is None or not ddl.now.ids_known:
        return None
    found = [(table_name(t.schema, t.name), ddl.now.objects[t.label].which) for t in ddl.subject.before]
    instant = with_instant_columns(ddl.session, frozenset[int]().union(*(ids for _, ids in found)))
    return Around(first=tuple(f"ALTER TABLE {name} FORCE" for name, ids in found if ids & instant))


def _unlike_gbk(ddl: SentDdl) -> Around | None:
    """Tables in an exchange have the same charsets: a gbk column that one of them has as utf8mb4 becomes what it is by the partitioned table."""
    tables, dialect = ddl.subject.before, ddl.dialect
    parted = next((t.info for t in tables if t.info.partitions), None)
    if ddl.subject.job.type != JobType.EXCHANGE_PARTITION or ddl.now is None or parted is None:
        return None
    wanted = {c.name: dialect.column_charset(c, parted) for c in parted.columns if dialect.charset(c.charset, c.collate).charset == GBK}
    there = read_tables(ddl.session, [(t.schema, t.name) for t in tables]) if wanted else {}
    charsets = {(t.name, name): c.charset for t in there.values() for name in wanted if (c := t.column(name))}
    first = []
    for table in tables:
        changed = [c for c in table.info.columns if c.name in wanted and charsets.get((table.name, c.name)) != wanted[c.name].charset]
        unlike = [c for c in changed if len({found for (_, name), found in charsets.items() if name == c.name}) > 1]
        texts = [f"MODIFY COLUMN {column_definition(c, table.info, dialect, explicit=True, charset=wanted[c.name])}" for c in unlike]
        first += [f"ALTER TABLE {table_name(table.schema, table.name)} {', '.join(texts)}"] if texts else []
    return Around(first=tuple(first))


def _name_taken(ddl: SentDdl) -> Around | None:
    """The job makes, restores or renames a table to the name of another one."""
    job = ddl.subject.job
    if job.type == JobType.RECOVER_TABLE:
        return Around(
            todo="Drop the table of that name at the target, or rename it, and start again. If its DROP was left out, so that it is this very table, skip the DDL"
        )
    renames = job.kind.effect is JobEffect.RENAMES
    if not renames and not job.kind.makes_tables:
        return None
    return Around(
        todo=f"Drop the table of that name at the target{'' if renames else ' (or, if it is equal, empty it)'}, or rename it, and start again. If you skip the DDL "
        "instead, the rows of the binlogs are added to the rows that are there"
    )


def _not_restored(ddl: SentDdl) -> Around | None:
    """TiDB's GC has passed the DROP. Of a table by name it says so in words only."""
    if ddl.subject.job.type != JobType.RECOVER_TABLE or ddl.error is None:
        return None
    if ddl.error.errno != _SNAPSHOT_TOO_OLD and "dropped/truncated" not in ddl.error.words:
        return None
    return Around(
        todo="The target cannot restore the table: its GC has passed the DROP or TRUNCATE, or it never had the table. Create the table there by hand with the rows "
        "that it had upstream at this commit_ts (dumpling --snapshot), and start again. For the next time, make the target's tidb_gc_life_time longer than "
        "the upstream's, by as much as the stream may lag"
    )


def _unlike_tables(ddl: SentDdl) -> Around | None:
    """Mend error ``Non matching attribute 'INSTANT COLUMN(s)' between partition and table``, where the account may not read this before, or another one."""
    if ddl.subject.job.type != JobType.EXCHANGE_PARTITION or ddl.error is None:
        return None
    if "INSTANT" not in ddl.error.words.upper():
        return Around(
            todo="Make this option equal in the two tables at the target (SHOW CREATE TABLE shows both; ALTER TABLE only one of them), and start again"
        )
    return Around(
        todo="Grant PROCESS to the target's user, and start again. The start then rebuilds both tables before the exchange (ALTER TABLE ... FORCE), which a "
        "server of 8.0.29 or later needs after ADD COLUMN and DROP COLUMN"
    )


def _nearest(form: Callable[[SentDdl, TableInfo], NearestForm | None]) -> Callable[[SentDdl], Around | None]:
    """A row that replaces the definition of the table by a simpler one."""

    def simpler(ddl: SentDdl) -> Around | None:
        table = ddl.table
        found = form(ddl, table.info) if table is not None else None
        if table is None or found is None or found.info == table.info:
            return None
        after = tuple(replace(t, info=found.info) if t is table else t for t in ddl.subject.after)
        return Around(subject=replace(ddl.subject, after=after), losses=tuple(f"{table.label}: {loss}" for loss in found.losses))

    return simpler


def _of_infos(ddl: SentDdl) -> Around | None:
    """A TiDB refuses the upstream's text, which may say more than the definition, or say it otherwise."""
    if ddl.subject.given.form is not DdlForm.TEXT or ddl.table is None:
        return None
    return Around(subject=replace(ddl.subject, given=DdlDelivery(DdlForm.INFOS, "the target refuses the upstream's text")))


def _computing_less(ddl: SentDdl, info: TableInfo) -> NearestForm | None:
    """An expression that the server does not have, or does not take here: in MariaDB 10.11 a STORED one of a CHAR, whose blanks depend on the session."""
    return computing_less(info, ddl.blamed(c for c in ddl.coming if c.generated), ddl.words)


def _without_defaults(ddl: SentDdl, info: TableInfo) -> NearestForm | None:
    """A default that the server does not have, or that the column's type cannot have there."""
    declared = [c for c in ddl.coming if c.default is not None and not c.generated]
    chosen = ddl.blamed(c for c in declared if c.default_is_expr)
    return without_defaults(info, chosen or (ddl.blamed(declared) if ddl.error and ddl.error.errno in _OF_DEFAULTS else []), ddl.words)


def _wide_rows(ddl: SentDdl) -> Around | None:
    """Row size too large. A table's past counts in MariaDB: columns that were added and dropped without a copy of the table, which FORCE makes."""
    if ddl.error is not None and str(MOST_IN_ROW) in ddl.error.words:
        return _nearest(lambda ddl, info: with_texts(info, ddl.dialect, ddl.words))(ddl)
    if ddl.made is None and ddl.dialect.flavour is Flavour.MARIADB and not ddl.sql.endswith(FORCE):
        return Around(sql=ddl.sql + FORCE)
    return _nearest(lambda ddl, info: off_page(info, ddl.dialect, ddl.words))(ddl)


def _too_long(ddl: SentDdl, info: TableInfo) -> NearestForm | None:
    """A VARCHAR of latin1 is one of utf8mb4 at the target."""
    return with_texts(info, ddl.dialect, ddl.words, {c.name for c in ddl.blamed(ddl.coming)})


def _foreign_keys_renamed(ddl: SentDdl, info: TableInfo) -> NearestForm | None:
    """Names of foreign keys are unique in a database, at a TiDB in a table. MariaDB's 1005 has many reasons."""
    if ddl.error is not None and ddl.error.errno == _CANNOT_CREATE and "errno: 121" not in ddl.words:
        return None
    old = ddl.subject.old.info.foreign_key_names if ddl.made is None and ddl.subject.old else ()
    return with_server_names(info, set(info.foreign_key_names) - set(old), "the database has a foreign key of this name")


_KEPT_BY = re.compile(r"constraint '(?:[^']*/)?([^']+)'")


def _kept_by_foreign_key(ddl: SentDdl) -> Around | None:
    """TiDB changes the type of a column that a foreign key of the table has. The key goes, because no row needs it; one of another table may be somebody's own."""
    found, old = _KEPT_BY.search(ddl.error.words) if ddl.error else None, ddl.subject.old
    if found is None or old is None or not old.info.foreign_keys:
        return None
    drop = f"ALTER TABLE {table_name(old.schema, old.name)} DROP FOREIGN KEY {quote_name(found[1])}"
    loss = f"{old.label}: foreign key {found[1]} left out, because the server does not change a column that it has: make it again by hand"
    return Around(first=(drop,), sql=ddl.sql, losses=(loss,))


def _key_prefixes(ddl: SentDdl, info: TableInfo) -> NearestForm | None:
    """A key over a VARCHAR that is a text at the target, because rows were too long."""
    old = ddl.subject.old
    there = read_tables(ddl.session, [(old.schema, old.name)]).get((old.schema, old.name)) if old else None
    texts = {c.name.lower() for c in there.columns if c.kind.endswith("text")} if there else set[str]()
    return with_prefixes(info, texts, ddl.dialect)


def _long_key(ddl: SentDdl) -> Around | None:
    if not ddl.dialect.binary:
        return None
    return Around(
        todo="Texts of utf8, ascii and gbk are utf8mb4 at the target, where a key of them may be too long. Make the table, or change its columns, there by hand "
        "with the upstream's charset, and start again"
    )


def _short_rows(ddl: SentDdl) -> Around:
    """Index column size too large: of a table with ROW_FORMAT COMPACT or REDUNDANT."""
    return Around(
        todo="The target limits keys to 767 bytes. Execute SET GLOBAL innodb_default_row_format = DYNAMIC there, for an existing table ALTER TABLE ... "
        "ROW_FORMAT = DYNAMIC, and start again"
    )


def _compared_as_in_session(ddl: SentDdl) -> Around | None:
    """An index over an expression compares texts as the session that makes it; MariaDB, which has none, stores the collation in generated columns.

    Of several collations of the texts, the session gets the one that distinguishes all texts.
    """
    dialect, after = ddl.dialect, ddl.subject.after
    plain = dialect.charset(UPSTREAM_DEFAULT.charset, UPSTREAM_DEFAULT.collate)
    there = {c.id for table in ddl.subject.before for c in table.info.columns}
    texts = [c for table in after for c in table.info.columns if c.hidden and c.id not in there and is_text_or_words(c)]
    if dialect.flavour is Flavour.MARIADB and any(c.generated for table in after for c in table.info.columns):
        return Around(settings={"collation_connection": quote_string(plain.collate)})
    if dialect.flavour is not Flavour.MYSQL or not texts:
        return None
    found = {dialect.charset(c.charset, c.collate) for c in texts}
    chosen = found.pop() if len(found) == 1 else plain
    # The session's texts are utf8mb4, and with a collation of another charset they would be converted.
    return Around(settings={"collation_connection": quote_string((chosen if chosen.charset == plain.charset else plain).collate)})


def _definer(ddl: SentDdl) -> str:
    """The account of a view that the job makes; empty if it makes none, or it is CURRENT_USER."""
    view = ddl.subject.new.info.view if ddl.subject.new and ddl.subject.job.type == JobType.CREATE_VIEW else None
    return account_name(view.user, view.host) if view is not None and view.user else ""


def _definer_gone(ddl: SentDdl) -> Around | None:
    """A server may take a view of an account that it does not have, and then refuses whoever reads the view.

    Raises:
        ApplyError: as it would say then.
    """
    if not (account := _definer(ddl)) or not ddl.sql:
        return None
    try:
        ddl.session.query(f"SHOW GRANTS FOR {account}")
    except ServerRefused as error:
        if error.errno == _NO_GRANTS:
            raise ServerRefused(f"the definer {account} does not exist", _NO_DEFINER, error.words) from error
    return None


def _definer_not_set(ddl: SentDdl) -> Around | None:
    """Make the view the account's own: its definer does not exist, or may not be set."""
    subject, account = ddl.subject, _definer(ddl)
    if not account or ddl.error is None:
        return None
    why = "does not exist at the target" if ddl.error.errno == _NO_DEFINER else "may not be set by the target's user"
    after = tuple(replace(t, info=replace(t.info, view=replace(t.info.view, user="", host=""))) for t in subject.after if t.info.view)
    return Around(
        subject=replace(subject, after=after), losses=(f"{subject.label}: the definer {account} {why}: CURRENT_USER in its place",)
    )


QUIRKS = (
    Quirk(_compared_as_in_session),
    Quirk(_definer_gone),
    Quirk(_definer_not_set, (1227, _NO_DEFINER)),
    Quirk(_unlike_gbk),
    Quirk(_instant_columns, at=Flavour.MYSQL),
    Quirk(_name_taken, (EXISTS_TABLE,)),
    Quirk(_not_restored, (_SNAPSHOT_TOO_OLD, 1105)),
    Quirk(_unlike_tables, (1731,)),
    Quirk(_key_not_given, (1235, 4108, 4109), Flavour.MYSQL),
    Quirk(_key_given, (1068,), Flavour.MYSQL),
    Quirk(_of_infos, range(1000, 10_000), Flavour.TIDB),
    Quirk(_nearest(_computing_less), _OF_EXPRESSIONS),
    Quirk(_nearest(_without_defaults), _OF_EXPRESSIONS | _OF_DEFAULTS),
    Quirk(_wide_rows, (1118,)),
    Quirk(_nearest(_too_long), (1074,)),
    Quirk(_nearest(lambda ddl, info: without_comments(info, ddl.words)), (1628, 1629, 1688, 1793)),
    Quirk(_nearest(_foreign_keys_renamed), (_CANNOT_CREATE, 1823, 1826)),
    Quirk(_kept_by_foreign_key, (1832,)),
    Quirk(_nearest(_key_prefixes), (1170,)),
    Quirk(_long_key, (_KEY_TOO_LONG,)),
    Quirk(_short_rows, (1709,)),
)
