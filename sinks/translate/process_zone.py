"""The time zone of this process, in which a Drainer writes TIMESTAMP values into files, the relay log and Kafka messages (wire.md 2.4).

Promises: a zone is picklable, so that executors on other machines use the driver's. Conversions are exact over daylight saving.
"""

import datetime
import os
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
    """``YYYY-MM-DD hh:mm:ss[.f]`` in UTC as the same moment in ``zone``; what is no moment (a zero date) stays as it is."""
    if zone is datetime.UTC:
        return text
    try:
        moment = datetime.datetime.strptime(text[:_FORMAT_LENGTH], "%Y-%m-%d %H:%M:%S").replace(tzinfo=datetime.UTC)
        return moment.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S") + text[_FORMAT_LENGTH:]
    except (ValueError, OverflowError):
        return text
