"""The time zone that the statements of one DDL run in on the target. [db]

Promises: the session is in UTC before and after, also when a statement fails; reads, and sets nothing but ``time_zone``. ``sinks.mysql.ddl.zone`` says
what depends on it.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from schemas.errors import ApplyError, RetryableApplyError
from sinks.mysql.ddl.text import Subject
from sinks.mysql.ddl.zone import Converted, Zone, certain, conversions, fixed, moved, read_time, reads_clock, span_query, time_zone
from sinks.mysql.target import Target

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Clock:
    """How the statements of a DDL are worded and run."""

    subject: Subject
    """What statements are made of: its TIMESTAMP literals are in the zone."""
    zone: Zone | None = None
    """None: UTC."""
    why_not: str = ""
    """Why the zone that the DDL depends on cannot be had; empty when it can."""


def clock_of(session: Target, subject: Subject, sql: str) -> Clock:
    """The clock of a DDL; ``sql``: its statement as it would run in UTC."""
    location, changed = subject.job.location, conversions(subject)
    if location is None or not (changed or reads_clock(sql)):
        return Clock(subject)
    depends = f"it depends on the time zone {location.name!r} of the session that gave it"
    try:
        tz = time_zone(location)
    except KeyError:
        return Clock(subject, why_not=f"{depends}, which is not known here")
    if tz is None:
        return Clock(subject)
    zone = fixed(tz) or _fixed_for(session, tz, changed) or _named(session, subject, location.name, tz)
    if zone is None:
        return Clock(
            subject,
            why_not=f"{depends}, whose offset changes within the times of the table: the target must know it by name (mysql_tzinfo_to_sql), "
            "and no TIMESTAMP default may lie in an hour that the zone has twice",
        )
    return Clock(moved(subject, zone.tz), zone)


@contextmanager
def in_zone(session: Target, zone: Zone | None) -> Iterator[None]:
    """The session is in ``zone`` while the block runs."""
    if zone is None:
        yield
        return
    session.execute("SET SESSION time_zone = %s", [zone.sql])
    try:
        yield
    finally:
        session.execute("SET SESSION time_zone = '+00:00'")


def _fixed_for(session: Target, tz: tzinfo, changed: Sequence[Converted]) -> Zone | None:
    """The zone as the one offset that it has for all times in these columns."""
    if not changed or not all(column.is_time for column in changed):
        return None
    times: list[datetime] = []
    for column in changed:
        try:
            row = session.query(span_query(column))[0]
        except RetryableApplyError:
            raise
        except ApplyError as error:
            _log.debug("cannot look into %s: %s", column.table, error)
            return None
        found = [read_time(value) for value in row if value is not None]
        if None in found:
            return None
        times += [t for t in found if t is not None]
    return fixed(tz, min(times), max(times)) if times else fixed(UTC)


def _named(session: Target, subject: Subject, name: str, tz: tzinfo) -> Zone | None:
    """The zone by its name, if the server knows it and no literal is ambiguous in it."""
    zone = Zone(name, tz)
    if not certain(subject, tz):
        return None
    try:
        with in_zone(session, zone):
            return zone
    except RetryableApplyError:
        raise
    except ApplyError as error:
        _log.debug("the target does not know the time zone %s: %s", name, error)
        return None
