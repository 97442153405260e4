"""DATE, DATETIME, TIMESTAMP and TIME: packed numbers and their text (rows.md 4).

    packed  ((year*13 + month) << 5 | day) << 17 | (hour << 12 | minute << 6 | second), then << 24 | microsecond
    TIME    signed nanoseconds

Promises: pure; zero and partial dates are kept as they are; fields out of range raise ``Corruption``. Fraction digits beyond the
requested precision are truncated, not rounded: TiDB rounds before it writes.
"""

import re

from pyspark_tidb_binlog.schemas.errors import Corruption

MAX_FSP = 6
MAX_TIME_NS = (838 * 3600 + 59 * 60 + 59) * 10**9 + 999_999_999
"""The largest TIME: 838:59:59 and a fraction."""

_DATETIME = re.compile(r"(\d{1,4})-(\d{1,2})-(\d{1,2})(?:[ T](\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{0,6}))?)?")
_TIME = re.compile(r"(-?)(\d{1,3}):(\d{1,2}):(\d{1,2})(?:\.(\d{0,6}))?")


def datetime_text(packed: int, fsp: int) -> str:
    """``YYYY-MM-DD hh:mm:ss[.f]`` of a packed time."""
    ymd, hms, micro = packed >> 41, (packed >> 24) & 0x1FFFF, packed & 0xFFFFFF
    year_month, day = ymd >> 5, ymd & 31
    year, month = divmod(year_month, 13)
    hour, minute, second = hms >> 12, (hms >> 6) & 63, hms & 63
    if year > 9999 or hour > 23 or minute > 59 or second > 59 or micro > 999_999:
        raise Corruption(f"the packed time {packed:#x} has a field out of range: {year}-{month}-{day} {hour}:{minute}:{second}.{micro}")
    return f"{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}{fraction_text(micro, fsp)}"


def date_text(packed: int) -> str:
    """``YYYY-MM-DD`` of a packed time."""
    return datetime_text(packed, 0)[:10]


def fraction_text(micro: int, fsp: int) -> str:
    """The first ``fsp`` digits of microseconds, with the decimal point."""
    return f".{micro:06}"[: fsp + 1] if fsp else ""


def pack_datetime(text: str) -> int:
    """The packed number of ``YYYY-MM-DD[ hh:mm:ss[.f]]``; ``ValueError`` when it is not one."""
    match = _DATETIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a date or time")
    *fields, fraction = match.groups("0")
    year, month, day, hour, minute, second = map(int, fields)
    if month > 12 or day > 31 or hour > 23 or minute > 59 or second > 59:
        raise ValueError(f"{text!r} is not a date or time")
    ymd = (year * 13 + month) << 5 | day
    return (ymd << 17 | hour << 12 | minute << 6 | second) << 24 | int(fraction.ljust(6, "0"))


def time_text(nanoseconds: int, fsp: int) -> str:
    """``[-]hh:mm:ss[.f]`` of a duration."""
    if abs(nanoseconds) > MAX_TIME_NS:
        raise Corruption(f"a TIME of {nanoseconds} ns exceeds 838:59:59")
    unit = 10 ** (9 - fsp)
    count = abs(nanoseconds) // unit
    seconds, part = divmod(count, 10**fsp)
    minutes, second = divmod(seconds, 60)
    sign = "-" if nanoseconds < 0 and count else ""
    fraction = f".{part:0{fsp}}" if fsp else ""
    return f"{sign}{minutes // 60:02}:{minutes % 60:02}:{second:02}{fraction}"


def parse_time(text: str) -> int:
    """The nanoseconds of ``[-]hh:mm:ss[.f]``; ``ValueError`` when it is not one."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a TIME")
    hour, minute, second = int(match[2]), int(match[3]), int(match[4])
    nanoseconds = ((hour * 60 + minute) * 60 + second) * 10**9 + int((match[5] or "").ljust(9, "0"))
    if minute > 59 or second > 59 or nanoseconds > MAX_TIME_NS:
        raise ValueError(f"{text!r} is not a TIME")
    return -nanoseconds if match[1] else nanoseconds
