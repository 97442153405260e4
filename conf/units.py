"""Sizes and durations as an operator writes them: ``10 GiB``, ``42 MB``, ``8h``, ``7``, ``200ms``.

Promises: pure; other text raises a ``ValueError`` that shows the valid forms.
"""

import re

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")
_PAUSE = re.compile(r"(\d+(?:\.\d+)?)(ms|s)")
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


def days_or_duration(text: str) -> float:
    """Seconds: a whole number is days, else ``8h``, ``1h30m``, ``90s`` (pump.md 3, ``gc``). Above 0."""
    stripped = text.strip()
    match = _DURATION.fullmatch(stripped)
    if stripped.isdigit():
        seconds = int(stripped) * _DAY
    elif match is not None:
        hours, minutes, rest = (float(part or 0) for part in match.groups())
        seconds = hours * 3600 + minutes * 60 + rest
    else:
        seconds = 0.0
    if seconds <= 0:
        raise ValueError(f"{text!r} is not a duration above 0: write days as a whole number, or 8h, 1h30m, 90s")
    return seconds


def pause_of(text: str) -> float:
    """Seconds: ``200ms``, ``1.5s``; ``0`` is 0."""
    stripped = text.strip()
    if stripped == "0":
        return 0.0
    match = _PAUSE.fullmatch(stripped)
    if match is None:
        raise ValueError(f"{text!r} is not a pause: write 200ms, 1.5s, or 0")
    return float(match[1]) / (1000 if match[2] == "ms" else 1)
