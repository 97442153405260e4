"""Executes a DDL that is known only by its text: from a relay log or a file sink's files, without a job of the DDL history. [db]

Promises: the text goes to the target unchanged, except that a target other than TiDB gets no TiDB feature comments, and a MySQL no IF EXISTS that it does
not know. An error that says the target is already so counts as success (drainer.md 5.6) only if it holds for every clause: an ALTER TABLE with one
clause that is already there executes none of them. RECOVER TABLE BY JOB is refused: its number is the upstream's.

A view that the target refuses is left out, because it holds no rows: ``WaitingViews`` tries it again as long as its process lives.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.schemas.ddl_tokens import Token, TokenKind, Tokens, significant, text_of, tokenize, with_depth, words
from pyspark_tidb_binlog.schemas.errors import ApplyError, LeaseLost, RetryableApplyError, ServerRefused
from pyspark_tidb_binlog.sinks.mysql.ddl.server_quirks import EXISTS_TABLE
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import without_features
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.retry_policy import RetryPolicy, connection_lost, read_only, retrying
from pyspark_tidb_binlog.sinks.mysql.session import Session, Sessions, session_for
from pyspark_tidb_binlog.sinks.mysql.state_table import CommitsLost
from pyspark_tidb_binlog.sinks.mysql.transactions import in_transaction, with_autocommit
from pyspark_tidb_binlog.sinks.replay.repeated import has_all_of, undoes_itself
from pyspark_tidb_binlog.sinks.replay.replay_record import ReplayRecord
from pyspark_tidb_binlog.sinks.translate.binlog_format import creates_database

_log = logging.getLogger(__name__)

_ALREADY_SO = frozenset({1007, 1008, 1049, 1050, 1051, 1054, 1060, 1061, 1091, 1146, 1176, 1831})
"""Errors of a DDL that was executed before, as the original takes them (drainer.md 5.6)."""
_DONE_BEFORE = _ALREADY_SO | {1022, 1068, 1493, 1505, 1507, 1508, 1517, 1735, 1826, 3821, 3822}
"""The same of a DDL that this target has answered: keys, constraints and partitions that are there, or no longer."""
_NO_DATABASE = 1049


class DdlUnrecorded(ApplyError):
    """The DDL was executed, or may have been, and the target has no record of it; executing it again could undo it."""


def execute_text(
    sessions: Sessions, retry_policy: RetryPolicy, database: str, query: str, flavour: Flavour, record: ReplayRecord
) -> ApplyError | None:
    """Execute ``query`` in ``database`` (empty: in none), and record it. Returns the error by which the target says that it is already so, else None.

    The connection that has answered the DDL records it, with any number of retries, as long as the connection lives. A server that loses the DDL
    loses the connection first. Then the DDL is executed again, unless that could undo it.

    Raises:
        ApplyError: the target refuses it, or already has a part of it.
        DdlUnrecorded: it was executed, or may have been, and could not be recorded.
    """
    ddl = _TextDdl(retry_policy, database, query, flavour, record)
    try:
        for attempt in retrying(retry_policy):
            with attempt, session_for(sessions, attempt) as session:
                already = ddl.run(session)
        return already
    except (LeaseLost, CommitsLost, DdlUnrecorded):
        raise
    except RetryableApplyError as error:
        if ddl.once and ddl.unheard:
            raise DdlUnrecorded(f"it was not recorded ({error}), and executing it again would undo it", error.errno, error.words) from error
        raise
    except ApplyError as error:
        if ddl.unheard:
            raise DdlUnrecorded(
                f"the connection was lost before it was recorded ({ddl.unheard}), and at the next attempt the target says: {error}",
                error.errno,
                error.words,
            ) from error
        raise


class _TextDdl:
    """One DDL over all its attempts."""

    def __init__(self, retry_policy: RetryPolicy, database: str, query: str, flavour: Flavour, record: ReplayRecord) -> None:
        self._retry_policy = retry_policy
        self._database = database
        self._query = query
        self._flavour = flavour
        self._record = record
        self._answered = False
        self.once = undoes_itself(query)
        """It may not be executed twice."""
        self.unheard = ""
        """The error of a connection that was lost behind the DDL, or amid it."""

    def run(self, session: Session) -> ApplyError | None:
        """One attempt; the error by which the target says that it is so already."""
        if self._record.has_executed(session):
            session.rollback()
            return None
        if self.once and self.unheard:
            raise DdlUnrecorded(f"the connection was lost before it was recorded ({self.unheard}), and executing it again would undo it")
        with with_autocommit(session):
            already = self._execute(session)
            self._note(session)
        return already

    def _execute(self, session: Session) -> ApplyError | None:
        sent = False
        try:
            if self._database and not creates_database(self._query):
                session.use(self._database)
            sent = True
            session.execute(_text_for(self._flavour, self._query))
        except RetryableApplyError as error:
            if sent and connection_lost(error.errno):
                self.unheard = str(error)
            raise
        except ApplyError as error:
            if self._answered and error.errno in _DONE_BEFORE:
                return error
            if makes_view(self._query):
                return error
            if error.errno not in _ALREADY_SO or (error.errno == _NO_DATABASE and not _drops_database(self._query)):
                raise
            if not has_all_of(session, self._database, self._query, error.errno):
                raise _part_of_it(error) from error
            return error
        self._answered = True
        return None

    def _note(self, session: Session) -> None:
        gone: RetryableApplyError | None = None
        try:
            for attempt in retrying(self._retry_policy):
                with attempt:
                    gone = self._noted(session)
        except (LeaseLost, CommitsLost):
            raise
        except ApplyError as error:
            raise DdlUnrecorded(f"it was executed, but the target refuses its record: {error}", error.errno, error.words) from error
        if gone is not None:
            self.unheard = str(gone)
            raise gone

    def _noted(self, session: Session) -> RetryableApplyError | None:
        """Record the DDL; the error after which this session cannot do it any more."""
        try:
            with in_transaction(session):
                self._record.note_executed(session)
                failpoints.point("after-ddl")
        except RetryableApplyError as error:
            # A server that is read-only now may no longer be the one that the address leads to.
            if connection_lost(error.errno) or (not self.once and read_only(error)):
                return error
            raise
        return None


_MADE = ("VIEW", "TABLE", "INDEX", "DATABASE", "SCHEMA", "SEQUENCE")


def makes_view(query: str) -> bool:
    """Whether it is CREATE VIEW: algorithm, definer and security may come before the word."""
    spoken = [t.word for t in significant(query)]
    return spoken[:1] == ["CREATE"] and next((word for word in spoken if word in _MADE), "") == "VIEW"


class WaitingViews:
    """Views that the target has refused since this process began."""

    def __init__(self, sessions: Sessions, retry_policy: RetryPolicy) -> None:
        self._sessions = sessions
        self._retry_policy = retry_policy
        self._waiting: dict[int, tuple[str, str]] = {}

    def after(self, commit_ts: int, database: str, query: str, refused: ApplyError | None) -> bool:
        """Note a DDL that ``execute_text`` has passed by, or try again after one that may make what a view lacks; whether it is a view that is left out."""
        if refused is not None and refused.errno != EXISTS_TABLE and makes_view(query):
            self._waiting[commit_ts] = database, query
            _log.warning(
                "the view of the DDL of commit_ts %d is left out, and tried again after each CREATE and RENAME until this program ends: %s",
                commit_ts,
                refused,
            )
            return True
        if self._waiting and {"CREATE", "RENAME"} & {t.word for t in significant(query)}:
            for attempt in retrying(self._retry_policy):
                with attempt, session_for(self._sessions, attempt) as session:
                    self._try(session)
        return False

    def _try(self, session: Session) -> None:
        with with_autocommit(session):
            while made := [ts for ts, (database, query) in self._waiting.items() if self._made(session, database, query)]:
                for ts in made:
                    del self._waiting[ts]
                    _log.warning("the view of the DDL of commit_ts %d, which was left out, is made now", ts)

    def _made(self, session: Session, database: str, query: str) -> bool:
        try:
            if database:
                session.use(database)
            session.execute(_text_for(session.flavour, query))
        except ServerRefused as error:
            return error.errno == EXISTS_TABLE
        return True


def _drops_database(query: str) -> bool:
    return [t.word for t in significant(query)[:2]] in (["DROP", "DATABASE"], ["DROP", "SCHEMA"])


def _part_of_it(refused: ApplyError) -> ApplyError:
    return ApplyError(
        f"{refused}. Nothing of it was executed. It has several clauses, and not all of them are executed already (or their names do not show it)",
        refused.errno,
        refused.words,
    )


def _alters(spoken: list[str]) -> bool:
    return spoken[:2] == ["ALTER", "TABLE"] or (spoken[:1] in (["CREATE"], ["DROP"]) and "INDEX" in spoken[1:3])


def _text_for(flavour: Flavour, query: str) -> str:
    if [t.word for t in significant(query)[:4]] == ["RECOVER", "TABLE", "BY", "JOB"]:
        raise ApplyError("it names a job of the upstream, but at the target another job has this number. Restore the table by its name")
    if flavour is Flavour.TIDB:
        return query
    tokens = without_features(tokenize(query, backslash_escapes=False))
    if flavour is Flavour.MYSQL and _alters(words(tokens)):
        tokens = _without_conditions(tokens)
    escaped = [replace(t, text=t.text.replace("\\", "\\\\")) if t.kind is TokenKind.STRING else t for t in tokens]
    return text_of(escaped).strip().rstrip("; ")


_CONDITIONS = (["IF", "NOT", "EXISTS"], ["IF", "EXISTS"])


def _without_conditions(tokens: Sequence[Token]) -> Tokens:
    """What is altered, without IF EXISTS and IF NOT EXISTS, for which MySQL has no syntax there. What the upstream has executed was so."""
    inside = {i for i, (depth, _) in enumerate(with_depth(tokens)) if depth}
    solid = [i for i, t in enumerate(tokens) if not t.blank]
    spoken = ["" if i in inside else tokens[i].word for i in solid]
    dropped: set[int] = set()
    for n in range(len(solid)):
        many = next((len(run) for run in _CONDITIONS if spoken[n : n + len(run)] == run), 0)
        if many and n + many < len(solid):
            dropped.update(range(solid[n], solid[n + many]))
    return [t for i, t in enumerate(tokens) if i not in dropped]
