"""Replaces ``%s`` in a statement with values. Pure.

Promises: quoted names stay as they are, also with a ``%``: names of databases and tables come from settings and from the upstream, and the
driver would read that ``%`` as a placeholder. Elsewhere ``%%`` is one ``%``, as in the driver.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

_PARTS = re.compile(r"(`(?:[^`]|``)*`|'(?:[^'\\]|\\.|'')*'|%s|%%)", re.DOTALL)


def bound(sql: str, args: Sequence[Any], literal: Callable[[Any], str]) -> str:
    """``sql`` with the literals of ``args``.

    Raises:
        TypeError: there are not as many values as places for them.
    """
    # With a group, ``split`` gives what is between two parts, and each part, in turn.
    texts = _PARTS.split(sql)
    places = [number for number, text in enumerate(texts) if text == "%s"]
    if len(places) != len(args):
        raise TypeError(f"{len(args)} values for {len(places)} places in {sql[:200]!r}")
    for number in range(1, len(texts), 2):
        if not texts[number].startswith("`"):
            texts[number] = texts[number].replace("%%", "%")
    for number, value in zip(places, args, strict=True):
        texts[number] = literal(value)
    return "".join(texts)
