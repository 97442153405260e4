"""A mapping that grows without a copy of all its entries: for the DDL history, which may have a hundred thousand jobs.

Promises: immutable. ``with_more`` returns a new mapping and copies at most the newest ``LATE`` entries. Once per ``LATE`` new entries
it copies all.
"""

from collections.abc import Iterator, Mapping
from typing import TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

LATE = 1024


class Layered(Mapping[K, V]):
    """The entries of ``late`` over those of ``base``."""

    __slots__ = ("_base", "_late")

    def __init__(self, base: Mapping[K, V], late: Mapping[K, V] | None = None) -> None:
        """Neither is copied: the caller must not change them afterwards."""
        self._base = base
        self._late = late or {}

    def with_more(self, more: Mapping[K, V]) -> "Layered[K, V]":
        """The mapping extended by ``more``, which wins."""
        late = {**self._late, **more}
        return Layered(self._base, late) if len(late) <= LATE else Layered({**self._base, **late})

    def __getitem__(self, key: K) -> V:
        return self._late[key] if key in self._late else self._base[key]

    @overload
    def get(self, key: K, /) -> V | None: ...
    @overload
    def get(self, key: K, default: V | D, /) -> V | D: ...
    def get(self, key: K, default: V | D | None = None, /) -> V | D | None:
        """As ``Mapping.get``, without raising an exception internally."""
        return self._late[key] if key in self._late else self._base.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._late or key in self._base

    def __iter__(self) -> Iterator[K]:
        yield from self._base
        yield from (key for key in self._late if key not in self._base)

    def __len__(self) -> int:
        return len(self._base) + sum(key not in self._base for key in self._late)
