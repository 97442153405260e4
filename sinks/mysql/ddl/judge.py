"""Did a DDL run, or has a person done it meanwhile? Judged from the row of an earlier try and the target as it is. [db]

Promises: reads only. A DROP ran when nothing is left. RENAME and EXCHANGE, whose effect may not show in a structure, are told by the
server's table ids, and left to a person where those do not tell. Of everything else the target must show what the job makes
(``sinks.mysql.ddl.wanted``), and where it changes what cannot be compared, the target's own description of that column must have changed: that the
target looks other than before in anything else is never enough.
"""

from dataclasses import dataclass

from schemas.ddl_tokens import quote_name
from schemas.errors import ApplyError
from schemas.history import JobType
from sinks.engine.segments import DdlStep
from sinks.mysql.ddl.clauses import Dialect
from sinks.mysql.ddl.pictures import Picture, is_empty, take_picture
from sinks.mysql.ddl.text import Subject
from sinks.mysql.ddl.wanted import lacks, unseen
from sinks.mysql.target import Target

DROPS = frozenset({JobType.DROP_SCHEMA, JobType.DROP_TABLE, JobType.DROP_VIEW, JobType.DROP_SEQUENCE})
"""Running them again drops what is left."""

_MOVES = frozenset({JobType.EXCHANGE_PARTITION, JobType.RENAME_TABLES, JobType.RENAME_TABLE})
"""Running them twice is not running them once, and the structure may look the same before and after."""

_EMPTIES = frozenset({JobType.TRUNCATE_TABLE, JobType.TRUNCATE_PARTITION})
"""No row has come since, so they ran, or need not, when what they empty is empty."""

_MAKES = frozenset({JobType.CREATE_TABLE, JobType.CREATE_TABLES, JobType.CREATE_VIEW, JobType.CREATE_SEQUENCE, JobType.CREATE_SCHEMA})
"""What is there already is met by running them again, and compared then."""

_MAKES_TABLES = frozenset({JobType.CREATE_TABLE, JobType.CREATE_TABLES})


@dataclass(frozen=True, slots=True)
class EarlierTry:
    """The row that an unfinished or refused DDL left."""

    refused: bool
    """It was refused and nothing of it ran; else its end is unknown."""
    was_refused_before: bool
    """At some time it was, and a person was told to mend it."""
    picture: Picture
    """The target before the last try."""


def shows(session: Target, subject: Subject, dialect: Dialect) -> bool:
    """The target has all that the job makes already, whatever it refuses the statement for."""
    kind = subject.job.type
    return kind not in DROPS | _MOVES | _EMPTIES | _MAKES and not unseen(subject) and lacks(session, subject, dialect) == ()


class Judge:
    """One DDL's judge."""

    def __init__(self, session: Target, step: DdlStep, subject: Subject, dialect: Dialect, marks: str) -> None:
        """``marks``: the table of the rows, for messages."""
        self._session = session
        self._step = step
        self._subject = subject
        self._dialect = dialect
        self._marks = marks

    def has_run(self, earlier: EarlierTry, now: Picture) -> bool:
        """Whether the job's effect is on the target, so that its statement must not run (again).

        Raises:
            ApplyError: nobody can tell.
        """
        kind = self._subject.job.type
        if kind in DROPS:
            return self._gone(now)
        if kind in _MOVES:
            return self._moved(earlier, now)
        if earlier.picture.same_as(now) or (kind in _MAKES and (earlier.was_refused_before or self._stood(earlier.picture))):
            return False
        if kind in _EMPTIES:
            return self._emptied()
        if any(_line(earlier.picture, u.table, u.before) == _line(now, u.table, u.after) != "" for u in unseen(self._subject)):
            return False  # a statement that sets a default or an expression again does no harm
        lacking = lacks(self._session, self._subject, self._dialect)
        if lacking is None:
            # A person who was told of a refusal may have changed anything, and running this again does no harm.
            return not earlier.was_refused_before
        return not lacking

    def _gone(self, now: Picture) -> bool:
        """Nothing of what is dropped is left. A server killed in DROP DATABASE has dropped some of the tables, or all and not the database."""
        subject = self._subject
        if subject.job.type == JobType.DROP_SCHEMA and any(
            t.create for t in take_picture(self._session, [subject.schema], ()).objects.values()
        ):
            return False
        return not any(t.create for t in now.objects.values())

    def _stood(self, before: Picture) -> bool:
        """A table was there under a name that the job makes, so that it must be looked at whatever else came."""
        return self._subject.job.type in _MAKES_TABLES and any(before.holds(t.schema, t.name) for t in self._subject.after)

    def _emptied(self) -> bool:
        old, after = self._subject.old, self._subject.info
        if old is None or after is None:
            return False
        if self._subject.job.type == JobType.TRUNCATE_TABLE:
            return is_empty(self._session, old.schema, old.name)
        ids = {p.name: p.id for p in old.info.partitions}
        emptied = [p.name for p in after.partitions if ids.get(p.name) != p.id]
        return all(is_empty(self._session, old.schema, old.name, name) for name in emptied)

    def _moved(self, earlier: EarlierTry, now: Picture) -> bool:
        before = earlier.picture
        if before.same_as(now):
            if not earlier.refused and not self._shows(before) and not (before.ids_known and now.ids_known):
                raise self._undecided(
                    "its effect does not show in the structure, and the server's table ids cannot be read. Grant PROCESS to the target's user"
                )
            return False
        if before.ids_known and now.ids_known:
            moves = self._moves()
            if moves and all(_ids(now, to) == _ids(before, of) != {} for of, to in moves):
                return True
            if self._subject.job.type == JobType.EXCHANGE_PARTITION and self._exchanged(before, now):
                return True
        elif self._shows(before) and not lacks(self._session, self._subject, self._dialect):
            return True
        raise self._undecided("the target changed, but not as this DDL changes it")

    def _shows(self, before: Picture) -> bool:
        distinct = len({t.create for t in before.objects.values()}) == len(before.objects)
        return distinct and self._subject.job.type != JobType.EXCHANGE_PARTITION

    def _moves(self) -> list[tuple[str, str]]:
        """(name before, name after) of each table that is renamed."""
        old = {t.table_id: f"{t.schema}.{t.name}" for t in self._subject.before}
        named = [(old[t.table_id], f"{t.schema}.{t.name}") for t in self._subject.after if t.table_id in old]
        return [(a, b) for a, b in named if a != b]

    def _exchanged(self, before: Picture, now: Picture) -> bool:
        """The plain table has one of the partitions' ids, and they have its."""
        subject = self._subject
        plain = next((f"{t.schema}.{t.name}" for t in subject.before if t.table_id == subject.job.table_id), "")
        parent = f"{subject.old.schema}.{subject.old.name}" if subject.old else ""
        if not {plain, parent} <= now.objects.keys() & before.objects.keys():
            return False
        had, has = before.objects[plain].ids.get(""), now.objects[plain].ids.get("")
        return had != has and has in before.objects[parent].ids.values() and had in now.objects[parent].ids.values()

    def _undecided(self, why: str) -> ApplyError:
        step = self._step
        return ApplyError(
            f"an earlier try of the DDL of job {step.job.id} on {self._subject.label} at commit_ts {step.commit_ts} ({step.query}) has no known end: {why}; "
            f"or look whether it ran, and if so skip it with syncer.ignore-txn-commit-ts = [{step.skip_ts}], if not delete its row from {self._marks}."
        )


def _line(picture: Picture, table: str, column: str) -> str:
    """The server's own line of a column in SHOW CREATE TABLE."""
    found = picture.objects.get(table)
    head = f"  {quote_name(column)} ".lower()
    return next((line for line in found.create.splitlines() if line.lower().startswith(head)), "") if found else ""


def _ids(picture: Picture, name: str) -> dict[str, int]:
    found = picture.objects.get(name)
    return dict(found.ids) if found else {}
