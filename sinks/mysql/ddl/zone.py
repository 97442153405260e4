"""The time zone in which the statements of a DDL run. [db] for ``clock_of``, which reads only; the rest is pure.

In the time zone of the session that issued the DDL, TiDB converts between TIMESTAMP and other types, and evaluates ``UNIX_TIMESTAMP('...')`` in a partition
boundary. The job records the zone as ``reorg_meta.location``. A zone is used as an offset if it has the same offset for all relevant times, otherwise by its name, which the
server must have. Literals of TIMESTAMP columns are in UTC in the infos, and are converted to the zone in which their statement runs.

A TIME that becomes a DATETIME gets the day of the conversion, which no job has. Such a DDL is refused.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from pyspark_tidb_binlog.schemas.column_pairs import pair_columns
from pyspark_tidb_binlog.schemas.ddl_jobs import Location
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name, quote_string
from pyspark_tidb_binlog.schemas.errors import ServerRefused
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import Subject
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import UTC_SINCE
from pyspark_tidb_binlog.sinks.mysql.ddl.text import reads_clock
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, table_name
from pyspark_tidb_binlog.sinks.mysql.target import Target
from pyspark_tidb_binlog.sinks.mysql.transactions import with_settings

_FIRST, _LAST = datetime(1970, 1, 1), datetime(2038, 1, 20)
"""The range of TIMESTAMP, in any zone."""
_TIMES = frozenset({ColumnType.TIMESTAMP, ColumnType.DATETIME, ColumnType.DATE})
_DAY = timedelta(days=1)
_UTC_NAMES = frozenset({"", "UTC", "Etc/UTC"})


@dataclass(frozen=True, slots=True)
class Zone:
    """A time zone for a session."""

    sql: str
    """The value of ``time_zone``."""
    tz: tzinfo


@dataclass(frozen=True, slots=True)
class Converted:
    """A column that a job converts from TIMESTAMP to another type or back."""

    table: str
    """Its quoted name before the job."""
    name: str
    is_time: bool
    """Its type before the job is a time type with a date, so that the smallest and the largest value give the range."""


def conversions(subject: Subject) -> tuple[Converted, ...]:
    """The columns whose conversion depends on the zone."""
    return tuple(
        Converted(table_name(old.schema, old.name), was.name, was.tp in _TIMES)
        for old, was, column in _kept(subject)
        if (was.tp == ColumnType.TIMESTAMP) != (column.tp == ColumnType.TIMESTAMP)
    )


def _kept(subject: Subject) -> Iterator[tuple[TableAt, ColumnInfo, ColumnInfo]]:
    """Each column that stays, before and after, with the table before."""
    after = {t.table_id: t for t in subject.after}
    for old in subject.before:
        new = after.get(old.table_id)
        pairs = pair_columns(subject.job, subject.query, old.info, new.info) or {} if new else {}
        for column in new.info.columns if new else ():
            was = pairs.get(column.name.lower())
            if was is not None and not was.generated:
                yield old, was, column


def span_query(column: Converted) -> str:
    """Query for the smallest and the largest value within the range of TIMESTAMP."""
    name = quote_name(column.name)
    return (
        f"SELECT CAST(MIN({name}) AS CHAR), CAST(MAX({name}) AS CHAR) FROM {column.table} "
        f"WHERE {name} BETWEEN '1970-01-01 00:00:01' AND '2038-01-19 03:14:07'"
    )


def time_zone(location: Location) -> tzinfo | None:
    """The zone of a job's session: None for UTC.

    Raises:
        KeyError: there is no zone of that name in the Drainer's time zone database.
    """
    if location.offset:
        return timezone(timedelta(seconds=location.offset))
    if location.name in _UTC_NAMES:
        return None
    try:
        return ZoneInfo(location.name)
    except (ValueError, OSError) as error:
        raise KeyError(location.name) from error


def fixed(tz: tzinfo, first: datetime = _FIRST, last: datetime = _LAST) -> Zone | None:
    """The zone as a fixed offset; None if its offset varies from ``first`` to ``last``, which may be in UTC or in the zone."""
    at, end = first - _DAY, last + _DAY
    offset = at.replace(tzinfo=tz).utcoffset() or timedelta()
    while at < end:
        at = min(at + _DAY, end)
        if at.replace(tzinfo=tz).utcoffset() != offset:
            return None
    minutes, seconds = divmod(int(offset.total_seconds()), 60)
    if seconds:
        return None
    sign = "-" if minutes < 0 else "+"
    return Zone(f"{sign}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}", timezone(offset))


def read_time(text: object) -> datetime | None:
    """A time in the server's format; None for anything else."""
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None


def certain(subject: Subject, tz: tzinfo) -> bool:
    """Whether no TIMESTAMP literal of the tables is ambiguous in the zone, as in the hour repeated when clocks go back."""
    return all(
        local.replace(fold=0).utcoffset() == local.replace(fold=1).utcoffset()
        for table in (*subject.before, *subject.after)
        for column in table.info.columns
        for text in (column.default, column.origin_default)
        if (local := _local(column, text, tz)) is not None
    )


def moved(subject: Subject, tz: tzinfo) -> Subject:
    """The subject with every TIMESTAMP literal of its tables converted to that zone."""
    before, after = (
        tuple(replace(t, info=replace(t.info, columns=tuple(_moved_column(c, tz) for c in t.info.columns))) for t in tables)
        for tables in (subject.before, subject.after)
    )
    return replace(subject, before=before, after=after)


def _moved_column(column: ColumnInfo, tz: tzinfo) -> ColumnInfo:
    default, origin = (_local(column, text, tz) for text in (column.default, column.origin_default))
    if default is not None:
        column = replace(column, default=_text(default, column))
    return replace(column, origin_default=_text(origin, column)) if origin is not None else column


def _local(column: ColumnInfo, text: object, tz: tzinfo) -> datetime | None:
    """A TIMESTAMP column's literal converted to that zone; None if it is not a time in UTC."""
    if column.tp != ColumnType.TIMESTAMP or column.version < UTC_SINCE or not isinstance(text, str):
        return None
    found = read_time(text)
    return found.replace(tzinfo=UTC).astimezone(tz) if found is not None else None


def _text(local: datetime, column: ColumnInfo) -> str:
    digits = max(column.decimal, 0)
    whole = local.strftime("%Y-%m-%d %H:%M:%S")
    return f"{whole}.{local.microsecond:06d}"[: len(whole) + 1 + digits] if digits else whole


_log = logging.getLogger(__name__)
_NO_COLUMN = 1054


@dataclass(frozen=True, slots=True)
class DdlClock:
    """Literals and time zone for the statements of a DDL."""

    subject: Subject
    """The subject for building statements: its TIMESTAMP literals are in the zone."""
    zone: Zone | None = None
    """None: UTC."""
    why_not: str = ""
    """Why the target cannot convert as the upstream did; empty if it can."""

    @property
    def settings(self) -> dict[str, str]:
        """The settings of the session that executes the statements."""
        return zone_setting(self.zone)


def zone_setting(zone: Zone | None) -> dict[str, str]:
    """The setting of a session in ``zone``; None: UTC, in which every session is."""
    return {"time_zone": quote_string(zone.sql)} if zone is not None else {}


def clock_of(session: Target, subject: Subject) -> DdlClock:
    """The clock of a DDL. What reads the clock (``reads_clock``) is a bound of a partition in the infos, or in the text for a TiDB."""
    location, changed = subject.job.location, conversions(subject)
    if any(was.tp == ColumnType.TIME and column.tp in _TIMES for _, was, column in _kept(subject)):
        return DdlClock(
            subject, why_not="a TIME gets the day on which it was converted. Convert it by hand after SET timestamp, and skip the DDL"
        )
    bounds = (bound for table in subject.after for part in table.info.partitions for bound in part.less_than if "(" in bound)
    reads = (session.flavour is Flavour.TIDB and reads_clock(subject.query)) or any(map(reads_clock, bounds))
    if location is None or not (changed or reads):
        return DdlClock(subject)
    depends = f"it depends on the time zone {location.name!r} of the session that issued it"
    try:
        tz = time_zone(location)
    except KeyError:
        return DdlClock(subject, why_not=f"{depends}, which the Drainer does not know")
    if tz is None:
        return DdlClock(subject)
    zone = fixed(tz) or _fixed_for(session, tz, changed) or _named(session, subject, location.name, tz)
    if zone is None:
        return DdlClock(
            subject,
            why_not=f"{depends}, whose offset changes within the times in the table. Load the zone at the target (mysql_tzinfo_to_sql). If it is loaded, a TIMESTAMP "
            "default is ambiguous in this zone (in the hour that is repeated when clocks go back)",
        )
    return DdlClock(moved(subject, zone.tz), zone)


def _fixed_for(session: Target, tz: tzinfo, changed: Sequence[Converted]) -> Zone | None:
    """The zone as a fixed offset, if it has the same offset for all times in these columns."""
    if not changed or not all(column.is_time for column in changed):
        return None
    times: list[datetime] = []
    for column in changed:
        try:
            row = session.query(span_query(column))[0]
        except ServerRefused as error:
            if error.errno == _NO_COLUMN:
                continue  # it has its new name: the statement ran before a crash
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
    except ServerRefused as error:
        _log.debug("the target does not have the time zone %s: %s", name, error)
        return None
