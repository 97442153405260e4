"""Peculiarities of servers in the way of a DDL's statement: the table ``QUIRKS``. [db]

A row with error numbers is asked when the server has refused the statement with one of them. A row without them is asked before the statement is sent, because the
server would execute it and do something else than TiDB.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.ddl_jobs import JobType
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name, quote_string
from pyspark_tidb_binlog.schemas.errors import ApplyError, ServerRefused
from pyspark_tidb_binlog.schemas.history import TableAt
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
    without_defaults,
)
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import DdlDelivery, DdlForm, Subject
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import UPSTREAM_DEFAULT, Dialect, is_text_or_words
from pyspark_tidb_binlog.sinks.mysql.ddl.target_here import SchemaSnapshot
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, account_name, table_name
from pyspark_tidb_binlog.sinks.mysql.structure import read_tables, with_instant_columns
from pyspark_tidb_binlog.sinks.mysql.target import Target
from pyspark_tidb_binlog.sinks.mysql.transactions import with_settings

_GIVES_KEYS = "sql_generate_invisible_primary_key"
EXISTS_TABLE = 1050
FORCE = ", FORCE"
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

    remedy: "Around | Callable[[SentDdl], Around | None]"
    """None: it does not apply to the statement."""
    errors: Collection[int] = ()
    """Of the server's refusal; none: it refuses nothing."""
    at: Flavour | None = None
    """None: at every server."""
    of: Collection[JobType] = ()
    """None: of every job."""
    said: str = ""
    """Part of the refusal, in upper case."""

    def found(self, ddl: SentDdl) -> "Around | None":
        """The remedy for the statement; None: it does not apply."""
        refused = ddl.error.errno in self.errors and self.said in ddl.error.words.upper() if ddl.error else not self.errors
        if not refused or self.at not in (None, ddl.dialect.flavour) or (self.of and ddl.subject.job.type not in self.of):
            return None
        return self.remedy if isinstance(self.remedy, Around) else self.remedy(ddl)


def around(ddl: SentDdl) -> Around:
    """Remedies of all rows before the statement is sent, or of the first row that applies to its refusal."""
    found = (one for row in QUIRKS if (one := row.found(ddl)) is not None)
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
    if ddl.now is None or not ddl.now.ids_known:
        return None
    found = [(table_name(t.schema, t.name), ddl.now.objects[t.label].which) for t in ddl.subject.before]
    instant = with_instant_columns(ddl.session, frozenset[int]().union(*(ids for _, ids in found)))
    return Around(first=tuple(f"ALTER TABLE {name} FORCE" for name, ids in found if ids & instant))


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


_LONG_KEY = Around(
    todo="Texts of utf8, ascii and gbk are utf8mb4 at the target, where a key of them may be too long. Make the table, or change its columns, there by hand "
    "with the upstream's charset, and start again"
)
_NAME_TAKEN = "Drop the table of that name at the target{}, or rename it, and start again. If you skip the DDL instead, the rows of the binlogs are added to the rows that are there"
_WITHOUT_OWN_KEY = Around(settings={_GIVES_KEYS: "0"})
_OTHER_FOREIGN_KEY = _nearest(
    lambda ddl, info: with_server_names(
        info,
        set(info.foreign_key_names) - set(ddl.subject.old.info.foreign_key_names if ddl.made is None and ddl.subject.old else ()),
        "the database has a foreign key of this name",
    )
)
"""Names of foreign keys are unique in a database, at a TiDB in a table."""
_EXCHANGES = (JobType.EXCHANGE_PARTITION,)

QUIRKS = (
    Quirk(_compared_as_in_session),
    Quirk(_definer_gone),
    Quirk(_definer_not_set, (1227, _NO_DEFINER)),
    Quirk(_instant_columns, at=Flavour.MYSQL, of=_EXCHANGES),
    Quirk(Around(todo=_NAME_TAKEN.format("")), (EXISTS_TABLE,), of=(JobType.RENAME_TABLE, JobType.RENAME_TABLES)),
    Quirk(
        Around(todo=_NAME_TAKEN.format(" (or, if it is equal, empty it)")),
        (EXISTS_TABLE,),
        of=(JobType.CREATE_TABLE, JobType.CREATE_TABLES),
    ),
    Quirk(
        Around(
            todo="Grant PROCESS to the target's user, and start again. The start then rebuilds both tables before the exchange (ALTER TABLE ... FORCE), which a "
            "server of 8.0.29 or later needs after ADD COLUMN and DROP COLUMN"
        ),
        (1731,),
        of=_EXCHANGES,
        said="INSTANT",
    ),
    Quirk(
        Around(
            todo="Make this option equal in the two tables at the target (SHOW CREATE TABLE shows both; ALTER TABLE only one of them), and start again"
        ),
        (1731,),
        of=_EXCHANGES,
    ),
    # MySQL adds ``my_row_id`` to a table without a primary key, but not where a column has that name or AUTO_INCREMENT, or a DROP needs it.
    Quirk(_WITHOUT_OWN_KEY, (4108, 4109), Flavour.MYSQL),
    Quirk(_WITHOUT_OWN_KEY, (1235,), Flavour.MYSQL, said=f"@@{_GIVES_KEYS}".upper()),
    Quirk(_key_given, (1068,), Flavour.MYSQL),
    Quirk(_of_infos, range(1000, 10_000), Flavour.TIDB),
    # An expression that the server does not have, or does not take here: in MariaDB 10.11 a STORED one of a CHAR, whose blanks depend on the session.
    Quirk(_nearest(lambda ddl, info: computing_less(info, ddl.blamed(c for c in ddl.coming if c.generated), ddl.words)), _OF_EXPRESSIONS),
    Quirk(_nearest(_without_defaults), _OF_EXPRESSIONS | _OF_DEFAULTS),
    Quirk(_wide_rows, (1118,)),
    # A VARCHAR of latin1 is one of utf8mb4 at the target.
    Quirk(_nearest(lambda ddl, info: with_texts(info, ddl.dialect, ddl.words, {c.name for c in ddl.blamed(ddl.coming)})), (1074,)),
    Quirk(_OTHER_FOREIGN_KEY, (1823, 1826)),
    Quirk(_OTHER_FOREIGN_KEY, (1005,), said="ERRNO: 121"),  # which has many reasons in MariaDB
    Quirk(_kept_by_foreign_key, (1832,)),
    Quirk(_nearest(_key_prefixes), (1170,)),
    Quirk(lambda ddl: _LONG_KEY if ddl.dialect.binary else None, (1071,)),
    Quirk(
        Around(
            todo="The target limits keys to 767 bytes. Execute SET GLOBAL innodb_default_row_format = DYNAMIC there, for an existing table ALTER TABLE ... "
            "ROW_FORMAT = DYNAMIC, and start again"
        ),
        (1709,),
    ),
)
