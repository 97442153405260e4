r"""Regular expressions of a real Drainer's settings, which are Go's. Pure.

Promises: an expression means what it means to the real Drainer, or is refused: syntax that only Go has (``[[:alpha:]]``, ``\z``, ``\pL``, ``\Q..\E``)
has no counterpart here. The classes ``\d``, ``\w`` and ``\s`` and the boundary ``\b`` are ASCII's, as in Go.
"""

import re
from functools import lru_cache

_ONLY_GO = re.compile(r"\[:\^?\w+:\]")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ASCII = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\t\n\f\r "}


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> re.Pattern[str]:
    """``pattern`` without regard to case.

    Raises:
        re.error: it is not valid, or Python would read it in another way than Go.
    """
    known = _ONLY_GO.search(pattern)
    if known is not None:
        raise re.error(f"character classes such as {known.group()} are not supported, write [a-z] or \\w")
    if re.search(r"(?<!\\)(?:\\\\)*\\Z", pattern):
        raise re.error("Go does not support \\Z")
    re.compile(pattern)  # its own errors have the places of the user's text
    return re.compile(_with_ascii_classes(pattern), re.IGNORECASE)


def _with_ascii_classes(pattern: str) -> str:
    out, at, inside = "", 0, False
    while at < len(pattern):
        char, end = pattern[at], at + 1
        if escaped := _ESCAPED.match(pattern, at):
            char, end = _ascii(escaped.group(1), inside=inside), escaped.end()
        elif inside:
            inside = char != "]"
        elif char == "[":
            # A ] that comes first stands for itself.
            first = re.compile(r"\[\^?\]?").match(pattern, at)
            assert first is not None
            char, end, inside = first.group(), first.end(), True
        out, at = out + char, end
    return out


def _ascii(letter: str, *, inside: bool) -> str:
    if letter in "bB":
        return f"\\{letter}" if inside else f"(?a:\\{letter})"
    if letter.lower() not in _ASCII:
        return f"\\{letter}"
    if inside and letter.isupper():
        raise re.error(f"\\{letter} within [] is not supported")
    some = _ASCII[letter.lower()]
    return some if inside else f"[{'^' if letter.isupper() else ''}{some}]"
