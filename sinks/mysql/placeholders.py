"""Replaces ``%s`` in a statement with values. Pure.

Promises: quoted names stay as they are, also with a ``%``: names of databases and tables come from settings and from the upstream, and the
driver would read that ``%`` as a placeholder. Elsewhere ``%%`` is one ``%``, as in the driver.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_PARTS = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.|'')*'|%s|%%", re.DOTALL)


def bound(sql: str, args: Sequence[Any], literal: Callable[[Any], str]) -> str:
    """``sql`` with the literals of ``args``.

    Raises:
        TypeError: there are not as many values as places for them.
    """
    values = iter(args)
    text = _PARTS.sub(lambda part: _replaced(part[0], values, literal), sql)
    if next(values, _NONE) is not _NONE:
        raise TypeError(f"more values than places in {sql[:200]!r}")
    return text


_NONE = object()


def _replaced(part: str, values: Iterator[Any], literal: Callable[[Any], str]) -> str:
    if part == "%s":
        value = next(values, _NONE)
        if value is _NONE:
            raise TypeError("fewer values than places in a statement")
        return literal(value)
    return part if part.startswith("`") else part.replace("%%", "%")
