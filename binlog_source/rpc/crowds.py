"""Connections by their clients' addresses: how many there may be, and who makes room for another.

    of one address   above its bound one of its own goes
    in all           above the bound one goes of the address that has the most

Who goes is the one that was silent for the longest among those that have no call; where all have calls, the newcomer goes. An IPv6 network of
64 bits is one address: a machine may have all of it.

Promises: pure. Half of the process's descriptors are not for connections, and of the last ones (``FILES``) none: the files always have some.
"""

import ipaddress
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

FILES = 256
"""Descriptors that no connection may have; a quarter of them all, where there are few."""
_NETWORK = 64
"""Bits of an IPv6 address by which clients are told apart."""


class Guest(Hashable, Protocol):
    """A connection."""

    @property
    def idle(self) -> bool:
        """Whether it has no call."""

    @property
    def heard(self) -> float:
        """When it said something last."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many connections there may be."""

    total: int
    each: int
    """Of one address."""
    descriptors: int
    """A connection's descriptor is below this."""


def bounds(total: int, each: int, descriptors: int) -> Bounds:
    """What is set, or less where the process has few descriptors (negative: as many as it wants)."""
    if descriptors < 0:
        return Bounds(total, each, 1 << 31)
    total = max(1, min(total, descriptors // 2))
    return Bounds(total, max(1, min(each, total // 2)), descriptors - min(FILES, descriptors // 4))


def address_of(host: str) -> str:
    """By what the clients of a host are counted."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address) >> _NETWORK << _NETWORK, _NETWORK)))


G = TypeVar("G", bound=Guest)


class Crowds(Generic[G]):
    """The connections there are."""

    def __init__(self) -> None:
        self._of: dict[str, dict[G, None]] = {}
        self._count = 0

    def add(self, guest: G, address: str) -> None:
        """A connection was made."""
        self._of.setdefault(address, {})[guest] = None
        self._count += 1

    def remove(self, guest: G, address: str) -> None:
        """A connection is not counted any more."""
        crowd = self._of.get(address, {})
        if guest in crowd:
            del crowd[guest]
            self._count -= 1
            if not crowd:
                del self._of[address]

    def one_too_many(self, newcomer: G, address: str, bounds: Bounds) -> G | None:
        """Who is to go for ``newcomer``, which has been added; None: there is room."""
        if len(self._of[address]) > bounds.each:
            return self._idlest(newcomer, self._of[address])
        if self._count > bounds.total:
            return self._idlest(newcomer, max(self._of.values(), key=len))
        return None

    def _idlest(self, newcomer: G, crowd: dict[G, None]) -> G:
        return min((guest for guest in crowd if guest is not newcomer and guest.idle), key=lambda guest: guest.heard, default=newcomer)
