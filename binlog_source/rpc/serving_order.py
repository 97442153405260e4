"""Fair order among waiting clients: the least recently served is first. Pure."""

from collections.abc import Callable

_REMEMBERED = 4096
"""How many names are kept; a dropped name counts as never served."""


class ServingOrder:
    """The order in which names were last served."""

    def __init__(self) -> None:
        self._last: dict[str, None] = {}  # most recently served last

    def took(self, who: str) -> None:
        """Note that ``who`` was served."""
        self._last.pop(who, None)
        self._last[who] = None
        if len(self._last) > _REMEMBERED:
            del self._last[next(iter(self._last))]

    def order(self) -> Callable[[str], int]:
        """A sort key as of now: the least recently served name first, those never served before all."""
        places = {who: place for place, who in enumerate(self._last, 1)}
        return lambda who: places.get(who, 0)
