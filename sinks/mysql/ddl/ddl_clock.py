"""Determines the time zone, and the time, in which the statements of one DDL run on the target. [db]

Promises: reads only. ``sinks.mysql.ddl.zone`` defines what depends on the zone.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_string
from pyspark_tidb_binlog.schemas.errors import ApplyError, RetryableApplyError
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import Subject
from pyspark_tidb_binlog.sinks.mysql.ddl.zone import (
    Converted,
    Zone,
    certain,
    conversions,
    fixed,
    job_time,
    moved,
    read_time,
    reads_clock,
    span_query,
    time_zone,
)
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.target import Target
from pyspark_tidb_binlog.sinks.mysql.transactions import with_settings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DdlClock:
    """Literals and time zone for the statements of a DDL."""

    subject: Subject
    """The subject for building statements: its TIMESTAMP literals are in the zone."""
    zone: Zone | None = None
    """None: UTC."""
    at: datetime | None = None
    """The time that is now for its statements, because values get its day; None: the server's own."""
    why_not: str = ""
    """Why the zone that the DDL depends on cannot be used; empty if it can."""

    @property
    def settings(self) -> dict[str, str]:
        """For the session of its statements."""
        at = {} if self.at is None else {"timestamp": f"{self.at.timestamp():.3f}"}
        return {**zone_setting(self.zone), **at}


def zone_setting(zone: Zone | None) -> dict[str, str]:
    """For a session in ``zone``; None: UTC, in which each is."""
    return {"time_zone": quote_string(zone.sql)} if zone is not None else {}


def clock_of(session: Target, subject: Subject, sql: str) -> DdlClock:
    """The clock of a DDL; ``sql``: its statement as it would be in UTC."""
    location, changed = subject.job.location, conversions(subject)
    dated = any(column.reach is not None for column in changed) and session.flavour is not Flavour.TIDB
    at = job_time(subject.job) if dated else None
    if location is None or not (changed or reads_clock(sql)):
        return DdlClock(subject, at=at)
    depends = f"it depends on the time zone {location.name!r} of the session that issued it"
    try:
        tz = time_zone(location)
    except KeyError:
        return DdlClock(subject, why_not=f"{depends}, which the Drainer does not know")
    if tz is None:
        return DdlClock(subject, at=at)
    zone = fixed(tz) or _fixed_for(session, tz, changed, at) or _named(session, subject, location.name, tz)
    if zone is None:
        return DdlClock(
            subject,
            why_not=f"{depends}, whose offset changes within the times in the table. Load the zone at the target (mysql_tzinfo_to_sql). If it is loaded, a TIMESTAMP "
            "default is ambiguous in this zone (in the hour that is repeated when clocks go back)",
        )
    return DdlClock(moved(subject, zone.tz), zone, at)


def _fixed_for(session: Target, tz: tzinfo, changed: Sequence[Converted], at: datetime | None) -> Zone | None:
    """The zone as a fixed offset, if it has the same offset for all times in these columns."""
    if not changed or not all(column.is_time or (column.reach is not None and at is not None) for column in changed):
        return None
    times: list[datetime] = []
    for column in changed:
        if column.reach is not None and at is not None:
            local = at.astimezone(tz).replace(tzinfo=None)
            times += [local - column.reach, local + column.reach]
            continue
        try:
            row = session.query(span_query(column))[0]
        except RetryableApplyError:
            raise
        except ApplyError as error:
            _log.debug("cannot read %s: %s", column.table, error)
            return None
        found = [read_time(value) for value in row if value is not None]
        if None in found:
            return None
        times += [t for t in found if t is not None]
    return fixed(tz, min(times), max(times)) if times else fixed(UTC)


def _named(session: Target, subject: Subject, name: str, tz: tzinfo) -> Zone | None:
    """The zone by name, if the server has it and no literal is ambiguous in it."""
    zone = Zone(name, tz)
    if not certain(subject, tz):
        return None
    try:
        with with_settings(session, zone_setting(zone)):
            return zone
    except RetryableApplyError:
        raise
    except ApplyError as error:
        _log.debug("the target does not have the time zone %s: %s", name, error)
        return None
