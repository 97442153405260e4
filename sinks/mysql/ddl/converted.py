"""Rows that a MODIFY converts otherwise at the target than upstream, in words. Pure.

    FLOAT, DOUBLE to a text    servers write numbers in different ways: TiDB 16777215, 1e20 as 100000000000000000000, MariaDB 16777200, 1e20
    TEXT to JSON on MariaDB    MariaDB's JSON is a text and stays as it was written; TiDB rewrites it
    JSON to a text on MySQL    MySQL writes floating point numbers as 1.0
    DATETIME(3) to DATE        MySQL rounds 23:59:59.6 up to the next day, TiDB cuts the time off
    DATETIME(3) to an integer  MariaDB cuts the fraction off, TiDB rounds it; the same for TIME(3)
    TIME to DATETIME           gets the day of the conversion, which is certain only if the job began and ended on one day

Rows that are written later are as upstream.
"""

from collections.abc import Iterator
from datetime import UTC

from pyspark_tidb_binlog.schemas.column_pairs import pair_columns, visible
from pyspark_tidb_binlog.schemas.ddl_jobs import Job
from pyspark_tidb_binlog.schemas.events import moment_of
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.mysql.ddl.text import Subject
from pyspark_tidb_binlog.sinks.mysql.ddl.zone import job_time, time_zone
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, is_bytes, is_text

_FLOATS = frozenset({ColumnType.FLOAT, ColumnType.DOUBLE})
_INTEGERS = frozenset({ColumnType.TINYINT, ColumnType.SMALLINT, ColumnType.MEDIUMINT, ColumnType.INT, ColumnType.BIGINT})
_MOMENTS = frozenset({ColumnType.DATETIME, ColumnType.TIMESTAMP})
_DATED = frozenset({ColumnType.DATETIME, ColumnType.TIMESTAMP, ColumnType.DATE, ColumnType.NEWDATE})


def converted_otherwise(subject: Subject, flavour: Flavour) -> tuple[str, ...]:
    """What differs in rows that are there, each with the way to have them as upstream."""
    old, new = subject.old, subject.new
    if old is None or new is None or flavour is Flavour.TIDB:
        return ()
    pairs = pair_columns(subject.job, subject.query, old.info, new.info) or {}
    found = []
    for column in visible(new.info):
        was = pairs.get(column.name.lower())
        if was is not None and not column.generated:
            found += [f"{subject.label}: column {column.name}: {why}" for why in _why(was, column, subject.job, flavour)]
    return tuple(f"{words}. To have the upstream's values, copy the table again: --bootstrap {subject.label}" for words in found)


def _why(was: ColumnInfo, column: ColumnInfo, job: Job, flavour: Flavour) -> Iterator[str]:
    worded = is_text(column) or is_bytes(column) or column.tp in (ColumnType.JSON, ColumnType.ENUM, ColumnType.SET)
    if was.tp in _FLOATS and worded:
        yield "its numbers became texts as the target writes them, which may differ from the upstream's (1e20, digits of large numbers)"
    if is_text(was) and column.tp == ColumnType.JSON and flavour is Flavour.MARIADB:
        yield "its texts stay as they were written, but the upstream has rewritten them as JSON (blanks, order of keys)"
    if was.tp == ColumnType.JSON and (is_text(column) or is_bytes(column)) and flavour is Flavour.MYSQL:
        yield "its JSON became texts as the target writes them, which may differ from the upstream's (1.0, 1e20)"
    if was.tp in _MOMENTS and was.decimal > 0 and column.tp == ColumnType.DATE and flavour is Flavour.MYSQL:
        yield "its times in the last half second of a day became the next day"
    if was.tp in {*_MOMENTS, ColumnType.TIME} and was.decimal > 0 and column.tp in _INTEGERS and flavour is Flavour.MARIADB:
        yield "its fractions of seconds were cut off, but the upstream has rounded them"
    if was.tp == ColumnType.TIME and column.tp in _DATED and not _one_day(job):
        yield "its times got the day on which the upstream began to convert them, but the conversion ended on another day"


def _one_day(job: Job) -> bool:
    """Whether the job certainly began and ended on one day of its zone."""
    begin = job_time(job)
    if begin is None or not job.finished_ts:
        return False
    try:
        tz = (time_zone(job.location) if job.location else None) or UTC
    except KeyError:
        return False
    return begin.astimezone(tz).date() == moment_of(job.finished_ts).astimezone(tz).date()
