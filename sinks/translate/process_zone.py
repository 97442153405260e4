"""The time zone of this process, in which a Drainer writes TIMESTAMP values into files, the relay log and Kafka messages (wire.md 2.4).

Promises: a zone is picklable, so that executors on other machines use the driver's. Conversions are exact over daylight saving.
"""

import datetime
import os
from dataclasses import dataclass, field
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_LOCALTIME = Path("/etc/localtime")
_FORMAT_LENGTH = len("2020-01-01 00:00:00")


def process_zone(localtime: Path = _LOCALTIME) -> datetime.tzinfo:
    """The zone that ``TZ`` names, else the machine's. Where neither has a name, the offset of now."""
    named = os.environ.get("TZ")
    if named is None:
        named = os.path.realpath(localtime).partition("/zoneinfo/")[2] or ("" if not localtime.exists() else None)
    if named is not None:
        if named.lstrip(":") in ("", "UTC", "Etc/UTC"):
            return datetime.UTC
        try:
            return ZoneInfo(named.lstrip(":"))
        except (ZoneInfoNotFoundError, ValueError):
            pass
    return datetime.datetime.now().astimezone().tzinfo or datetime.UTC


def in_zone(text: str, zone: datetime.tzinfo) -> str:
    """``YYYY-MM-DD hh:mm:ss[.f]`` in UTC as the same moment in ``zone``; a text that is no moment (a zero date) does not change."""
    if zone is datetime.UTC:
        return text
    try:
        moment = datetime.datetime.strptime(text[:_FORMAT_LENGTH], "%Y-%m-%d %H:%M:%S").replace(tzinfo=datetime.UTC)
        return moment.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S") + text[_FORMAT_LENGTH:]
    except (ValueError, OverflowError):
        return text


@dataclass(slots=True)
class ReadBack:
    """How TIMESTAMP values of a file are read back, and which were doubtful."""

    zone: datetime.tzinfo
    """That of the process that wrote it."""
    doubtful_times: dict[str, int] = field(default_factory=dict)
    """Number of values, by table, in the hour that comes twice when summer time ends: the file does not say which of the two hours is meant."""

    def in_utc(self, text: str, table: str) -> str:
        """``text`` in the file's zone as the same moment in UTC, the earlier of two; a text that is no moment (a zero date) does not change."""
        if self.zone is datetime.UTC:
            return text
        try:
            local = datetime.datetime.strptime(text[:_FORMAT_LENGTH], "%Y-%m-%d %H:%M:%S").replace(tzinfo=self.zone)
            first, second = (local.replace(fold=fold).astimezone(datetime.UTC) for fold in (0, 1))
        except (ValueError, OverflowError):
            return text
        if first < second:
            self.doubtful_times[table] = self.doubtful_times.get(table, 0) + 1
        return first.strftime("%Y-%m-%d %H:%M:%S") + text[_FORMAT_LENGTH:]
