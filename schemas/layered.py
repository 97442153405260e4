"""A mapping that grows by a copy of what is new in it, and not of everything: the DDL history's, with a hundred thousand jobs.

Promises: immutable; ``with_more`` gives another one and costs a copy of the newest ``LATE`` entries at most, but for once in ``LATE`` times.
"""

from collections.abc import Iterator, Mapping
from typing import TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

LATE = 1024


class Layered(Mapping[K, V]):
    """``late`` over ``base``."""

    __slots__ = ("_base", "_late")

    def __init__(self, base: Mapping[K, V], late: Mapping[K, V] | None = None) -> None:
        """Neither is copied: whoever gives them changes them no more."""
        self._base = base
        self._late = late or {}

    def with_more(self, more: Mapping[K, V]) -> "Layered[K, V]":
        """What is here and ``more``, which wins."""
        late = {**self._late, **more}
        return Layered(self._base, late) if len(late) <= LATE else Layered({**self._base, **late})

    def __getitem__(self, key: K) -> V:
        return self._late[key] if key in self._late else self._base[key]

    @overload
    def get(self, key: K, /) -> V | None: ...
    @overload
    def get(self, key: K, default: V | D, /) -> V | D: ...
    def get(self, key: K, default: V | D | None = None, /) -> V | D | None:
        """As any mapping's, without an exception on the way."""
        return self._late[key] if key in self._late else self._base.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._late or key in self._base

    def __iter__(self) -> Iterator[K]:
        yield from self._base
        yield from (key for key in self._late if key not in self._base)

    def __len__(self) -> int:
        return len(self._base) + sum(key not in self._base for key in self._late)
