"""Whose turn it is among those who wait: the one whose last turn is the longest ago. Pure."""

from collections.abc import Callable

_REMEMBERED = 4096
"""How many are remembered; whoever is forgotten is as one who never had a turn."""


class Turns:
    """The last turns of some, by name."""

    def __init__(self) -> None:
        self._last: dict[str, None] = {}  # the one whose turn was last at the end

    def took(self, who: str) -> None:
        """It was the turn of ``who``."""
        self._last.pop(who, None)
        self._last[who] = None
        if len(self._last) > _REMEMBERED:
            del self._last[next(iter(self._last))]

    def order(self) -> Callable[[str], int]:
        """A key to sort by, as of now: who comes first is next; who never had a turn comes before all."""
        places = {who: place for place, who in enumerate(self._last, 1)}
        return lambda who: places.get(who, 0)
