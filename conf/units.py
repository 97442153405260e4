"""Sizes and durations as an operator writes and reads them: ``10 GiB``, ``42 MB``, ``8h``, ``7``, ``200ms``, ``1m30s``.

Promises: pure; other text raises a ``ValueError`` that shows the valid forms.
"""

import contextlib
import re

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DAY = 86_400.0


def size_of(text: str) -> int:
    """Bytes: ``42 MB`` is 42,000,000, ``42 MiB`` 44,040,192, a bare number is bytes, empty text 0 (pump.md 3)."""
    if not text.strip():
        return 0
    match = _SIZE.fullmatch(text)
    unit = match[2].lower() if match else "?"
    binary = unit.endswith("ib")
    prefix = unit.removesuffix("ib") if binary else unit.removesuffix("b")
    if match is None or prefix not in _POWERS or (binary and not prefix):
        raise ValueError(f"{text!r} is not a size: write bytes, 42 MB or 10 GiB")
    return int(float(match[1]) * (1024 if binary else 1000) ** _POWERS[prefix])


def go_duration(text: str) -> float:
    """Seconds, as Go's ``time.ParseDuration`` reads them: ``1m30s``, ``1.5h``, ``100ms``, ``-2s``; ``0`` needs no unit."""
    sign, rest = (-1.0, text[1:]) if text.startswith("-") else (1.0, text.removeprefix("+"))
    if rest == "0":
        return 0.0
    parts = list(_PART.finditer(rest))
    if not parts or sum(len(part[0]) for part in parts) != len(rest):
        raise ValueError(f"{text!r} is not a duration: write 90s, 1m30s, 8h or 200ms")
    return sign * sum(float(part[1]) * _UNITS[part[2]] for part in parts)


def duration_of(text: str) -> float:
    """Seconds: a whole number is days, else ``go_duration``, as in the real programs' files (pump.md 3). Not below 0."""
    stripped = text.strip()
    seconds = int(stripped) * _DAY if stripped.isascii() and stripped.isdigit() else go_duration(stripped)
    if seconds < 0:
        raise ValueError(f"{text!r} is below 0")
    return seconds


def days_or_duration(text: str) -> float:
    """``duration_of`` a text that must be above 0 (``gc``)."""
    with contextlib.suppress(ValueError):
        if seconds := duration_of(text):
            return seconds
    raise ValueError(f"{text!r} is not a duration above 0: write days as a whole number, or 8h, 1h30m, 90s")


def pause_of(text: str) -> float:
    """Seconds: ``200ms``, ``1.5s``; ``0`` is 0."""
    with contextlib.suppress(ValueError):
        if (seconds := go_duration(text.strip())) >= 0:
            return seconds
    raise ValueError(f"{text!r} is not a pause: write 200ms, 1.5s, or 0")


def wrong_port(addresses: str) -> str:
    """The first port above 65535 among ``host:port,host:port`` or URLs; empty: there is none."""
    return next((port for port in re.findall(r":(\d+)(?=[,/]|$)", addresses) if int(port) > 65535), "")


def duration_in_words(seconds: float) -> str:
    """A duration as text for people: ``0.3 s``, ``2.5 min``, ``2.0 h``, ``6.9 days``."""
    for below, unit, name in ((120.0, 1.0, "s"), (7200.0, 60.0, "min"), (2 * _DAY, 3600.0, "h")):
        if seconds < below:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds / _DAY:.1f} days"
