"""Values of rows under a DDL: the time zone in which its statements convert them, and what the target makes of them otherwise than upstream. [db]

Promises: reads only. In the time zone of the session that issued the DDL, TiDB converts between TIMESTAMP and other types, and evaluates ``UNIX_TIMESTAMP('...')`` in
a partition boundary. The job records the zone as ``reorg_meta.location``. A zone is used as an offset if it has the same offset for all relevant times, otherwise by its
name, which the server must have. Literals of TIMESTAMP columns are in UTC in the infos, and are converted to the zone in which their statement runs.

A TIME that becomes a DATETIME gets the day of the conversion, which no job has. Such a DDL is refused.

A column that a job adds, and that somebody added before, counts as the upstream's if every row holds the upstream's value of rows older than the column, or cannot be
compared. ``other_values`` names the others, with an UPDATE, which is right as long as no later row change is applied.

``converted_otherwise``, in words; rows that are written later are as upstream:

    FLOAT, DOUBLE to a text    servers write numbers in different ways: TiDB 16777215, 1e20 as 100000000000000000000, MariaDB 16777200, 1e20
    TEXT to JSON on MariaDB    MariaDB's JSON is a text and stays as it was written; TiDB rewrites it
    JSON to a text on MySQL    MySQL writes floating point numbers as 1.0
    DATETIME(3) to DATE        MySQL rounds 23:59:59.6 up to the next day, TiDB cuts the time off
    DATETIME(3) to an integer  MariaDB cuts the fraction off, TiDB rounds it; the same for TIME(3)
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from pyspark_tidb_binlog.schemas.arrowtypes import INTEGERS
from pyspark_tidb_binlog.schemas.column_pairs import pair_columns, visible
from pyspark_tidb_binlog.schemas.ddl_jobs import Location
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name, quote_string
from pyspark_tidb_binlog.schemas.errors import ServerRefused
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnFlag, ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import Subject
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import UTC_SINCE, origin_literal
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect, reads_clock
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, is_bytes, is_text, match_condition, table_name
from pyspark_tidb_binlog.sinks.mysql.target import Target
from pyspark_tidb_binlog.sinks.mysql.transactions import with_settings

_log = logging.getLogger(__name__)

_FIRST, _LAST = datetime(1970, 1, 1), datetime(2038, 1, 20)
"""The range of TIMESTAMP, in any zone."""
_TIMES = frozenset({ColumnType.TIMESTAMP, ColumnType.DATETIME, ColumnType.DATE})
_MOMENTS = frozenset({ColumnType.DATETIME, ColumnType.TIMESTAMP})
"""Types that may have ON UPDATE CURRENT_TIMESTAMP, which some servers add implicitly."""
_FLOATS = frozenset({ColumnType.FLOAT, ColumnType.DOUBLE})
_DAY = timedelta(days=1)
_UTC_NAMES = frozenset({"", "UTC", "Etc/UTC"})
_NO_COLUMN = 1054
_FLOAT_DIGITS = 1e-6
"""A FLOAT is compared with this relative difference: it is not the number that its literal is."""


@dataclass(frozen=True, slots=True)
class Zone:
    """A time zone for a session."""

    sql: str
    """The value of ``time_zone``."""
    tz: tzinfo


@dataclass(frozen=True, slots=True)
class DdlClock:
    """Literals and time zone for the statements of a DDL."""

    subject: Subject
    """The subject for building statements: its TIMESTAMP literals are in the zone."""
    zone: Zone | None = None
    """None: UTC, in which every session is."""
    why_not: str = ""
    """Why the target cannot convert as the upstream did; empty if it can."""

    @property
    def settings(self) -> dict[str, str]:
        """The settings of the session that executes the statements."""
        return {"time_zone": quote_string(self.zone.sql)} if self.zone is not None else {}


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
    if (zone := fixed(tz) or _fixed_for(session, tz, changed)) is not None:
        return DdlClock(moved(subject, zone.tz), zone)
    found = DdlClock(moved(subject, tz), Zone(location.name, tz))
    try:
        with with_settings(session, found.settings):
            if certain(subject, tz):
                return found
    except ServerRefused as error:
        _log.debug("the target does not have the time zone %s: %s", location.name, error)
    return DdlClock(
        subject,
        why_not=f"{depends}, whose offset changes within the times in the table. Load the zone at the target (mysql_tzinfo_to_sql). If it is loaded, a TIMESTAMP "
        "default is ambiguous in this zone (in the hour that is repeated when clocks go back)",
    )


def _fixed_for(session: Target, tz: tzinfo, changed: Sequence[tuple[TableAt, ColumnInfo]]) -> Zone | None:
    """The zone as a fixed offset, if it has the same offset for all times in these columns."""
    # The smallest and the largest value give the range of a type with a date only.
    if not changed or not all(column.tp in _TIMES for _, column in changed):
        return None
    times = list[datetime]()
    for table, column in changed:
        name = quote_name(column.name)
        sql = (
            f"SELECT CAST(MIN({name}) AS CHAR), CAST(MAX({name}) AS CHAR) FROM {table_name(table.schema, table.name)} "
            f"WHERE {name} BETWEEN '1970-01-01 00:00:01' AND '2038-01-19 03:14:07'"
        )
        try:
            found = [read_time(value) for value in session.query(sql)[0] if value is not None]
        except ServerRefused as error:
            if error.errno == _NO_COLUMN:
                continue  # it has its new name: the statement ran before a crash
            _log.debug("cannot read %s: %s", table.label, error)
            return None
        if None in found:
            return None
        times += [t for t in found if t is not None]
    return fixed(tz, min(times), max(times)) if times else fixed(UTC)


def conversions(subject: Subject) -> tuple[tuple[TableAt, ColumnInfo], ...]:
    """The columns, and their tables, before the job, that it converts from TIMESTAMP to another type or back: this depends on the zone."""
    return tuple((old, was) for old, was, now in _kept(subject) if (was.tp == ColumnType.TIMESTAMP) != (now.tp == ColumnType.TIMESTAMP))


def _columns(subject: Subject) -> Iterator[tuple[TableAt, ColumnInfo | None, ColumnInfo]]:
    """Each column after the job, what it was (None: the job adds it), and its table before the job; none of a table whose columns nobody can match."""
    after = {t.table_id: t for t in subject.after}
    for old in subject.before:
        new = after.get(old.table_id)
        pairs = pair_columns(subject.job, subject.query, old.info, new.info) if new else None
        for column in visible(new.info) if new is not None and pairs is not None else ():
            yield old, pairs.get(column.name.lower()) if pairs else None, column


def _kept(subject: Subject) -> Iterator[tuple[TableAt, ColumnInfo, ColumnInfo]]:
    """The columns that stay and are not computed: table and column before the job, and after it."""
    return ((old, was, column) for old, was, column in _columns(subject) if was is not None and not was.generated)


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


def null_fills(subject: Subject, dialect: Dialect) -> tuple[tuple[str, str], ...]:
    """(column, statement) for each column that becomes NOT NULL. TiDB has no NULLs there; at the target they get TiDB's default, not the server's."""
    return tuple(
        (was.name, filling(old, was, origin_literal(replace(was, flag=column.flag), dialect.flavour), f"{quote_name(was.name)} IS NULL"))
        for old, was, column in _kept(subject)
        if column.not_null and not was.not_null
    )


def filling(table: TableAt, column: ColumnInfo, value: str, where: str) -> str:
    """The UPDATE that gives ``column`` the literal ``value`` in some rows, and changes nothing else."""
    own = quote_name(column.name)
    # A column that is assigned is not changed by its ON UPDATE clause.
    names = (quote_name(c.name) for c in visible(table.info) if c.tp in _MOMENTS and not c.generated)
    still = "".join(f", {name} = {name}" for name in names if name != own)
    return f"UPDATE {table_name(table.schema, table.name)} SET {own} = {value}{still} WHERE {where}"


def other_values(session: Target, subject: Subject) -> tuple[str, ...]:
    """The difference, and what to do, for each column that the job adds and whose rows at the target have another value than upstream."""
    found, after = [], {t.table_id: t for t in subject.after}
    for old, was, column in _columns(subject):
        if was is not None or column.generated or column.flag & ColumnFlag.AUTO_INCREMENT:
            continue
        table, value = after[old.table_id], origin_literal(column, session.flavour)
        same = _holds(column, value, session.flavour)
        try:
            if not session.query(f"SELECT 1 FROM {table_name(table.schema, table.name)} WHERE NOT ({same}) LIMIT 1"):
                continue
        except ServerRefused:
            continue
        update = filling(table, column, value, f"NOT ({same})")
        found.append(
            f"{table.label} already has the column {column.name}, and rows that are there hold another value than upstream, where it is "
            f"{value}. If somebody made the column for another use, rename it and start again. Otherwise, before any later row is written, execute {update}"
        )
    return tuple(found)


def _holds(column: ColumnInfo, literal: str, flavour: Flavour) -> str:
    """The condition that the column is ``literal``."""
    shown = quote_name(column.name)
    if column.tp == ColumnType.STRING and is_text(column) and literal.endswith(" '"):
        literal = f"{literal[:-1].rstrip(' ')}'"  # a CHAR has no blanks at its end
    if literal == "NULL":
        return f"{shown} IS NULL"
    if column.tp == ColumnType.FLOAT or (column.tp == ColumnType.DOUBLE and column.decimal >= 0):
        rounded = f"{0.5 * 10.0**-column.decimal!r} + " if column.decimal >= 0 else ""
        return f"{shown} IS NOT NULL AND ABS({shown} - {literal}) <= {rounded}ABS({literal}) * {_FLOAT_DIGITS}"
    if column.tp == ColumnType.SET:
        return f"{shown} <=> {literal}"  # a text
    first, *others = (text.decode() for text in match_condition(column, flavour, indexed=False))
    return f"{first}{literal}{literal.join(others)}"


def converted_otherwise(subject: Subject, flavour: Flavour) -> tuple[str, ...]:
    """Differences of rows that are there, each with the way to have them as upstream."""
    return tuple(
        f"{old.label}: column {column.name}: {why}. To have the upstream's values, copy the table again: --bootstrap {old.label}"
        for old, was, column in _columns(subject)
        if was is not None and not column.generated and flavour is not Flavour.TIDB
        for why in _why(was, column, flavour)
    )


def _why(was: ColumnInfo, column: ColumnInfo, flavour: Flavour) -> Iterator[str]:
    worded = is_text(column) or is_bytes(column) or column.tp in (ColumnType.JSON, ColumnType.ENUM, ColumnType.SET)
    if was.tp in _FLOATS and worded:
        yield "its numbers became texts as the target writes them, which may differ from the upstream's (1e20, digits of large numbers)"
    if is_text(was) and column.tp == ColumnType.JSON and flavour is Flavour.MARIADB:
        yield "its texts stay as they were written, but the upstream has rewritten them as JSON (blanks, order of keys)"
    if was.tp == ColumnType.JSON and (is_text(column) or is_bytes(column)) and flavour is Flavour.MYSQL:
        yield "its JSON became texts as the target writes them, which may differ from the upstream's (1.0, 1e20)"
    if was.tp in _MOMENTS and was.decimal > 0 and column.tp == ColumnType.DATE and flavour is Flavour.MYSQL:
        yield "its times in the last half second of a day became the next day"
    if was.tp in {*_MOMENTS, ColumnType.TIME} and was.decimal > 0 and column.tp in INTEGERS and flavour is Flavour.MARIADB:
        yield "its fractions of seconds were cut off, but the upstream has rounded them"
