"""Limits on connections by client address: how many are allowed, and which connection is closed to make room.

    of one address   above the limit, a connection of that address is closed
    in total         above the limit, a connection of the address with the most is closed

The closed connection is the longest silent among those without a call. If all have calls, it is the new connection. An IPv6 network of
64 bits counts as one address, because one machine may own all of it.

Promises: pure. Connections use at most half of the process's descriptors, and none of the last ``FILES``, so that files always get some.
"""

import ipaddress
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

FILES = 256
"""Descriptors reserved for files; at most a quarter of all."""
_NETWORK = 64
"""Leading bits of an IPv6 address that distinguish clients."""


class LimitedConnection(Hashable, Protocol):
    """A connection."""

    @property
    def idle(self) -> bool:
        """Whether it has no call."""

    @property
    def heard(self) -> float:
        """When it last received something."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections are allowed."""

    total: int
    each: int
    """Per address."""
    descriptors: int
    """A connection's descriptor must be below this."""


def bounds(total: int, each: int, descriptors: int) -> ConnectionLimits:
    """The configured limits, lowered where the process has few ``descriptors`` (negative: unlimited)."""
    if descriptors < 0:
        return ConnectionLimits(total, each, 1 << 31)
    total = max(1, min(total, descriptors // 2))
    return ConnectionLimits(total, max(1, min(each, total // 2)), descriptors - min(FILES, descriptors // 4))


def address_of(host: str) -> str:
    """The address by which a host's connections are counted."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address) >> _NETWORK << _NETWORK, _NETWORK)))


G = TypeVar("G", bound=LimitedConnection)


class ConnectionLimiter(Generic[G]):
    """The open connections by address."""

    def __init__(self) -> None:
        self._of: dict[str, dict[G, None]] = {}
        self._count = 0

    def add(self, guest: G, address: str) -> None:
        """Count a new connection."""
        self._of.setdefault(address, {})[guest] = None
        self._count += 1

    def remove(self, guest: G, address: str) -> None:
        """Stop counting a connection."""
        crowd = self._of.get(address, {})
        if guest in crowd:
            del crowd[guest]
            self._count -= 1
            if not crowd:
                del self._of[address]

    def one_too_many(self, newcomer: G, address: str, bounds: ConnectionLimits) -> G | None:
        """The connection to close for ``newcomer``, which has been added; None: there is room."""
        if len(self._of[address]) > bounds.each:
            return self._idlest(newcomer, self._of[address])
        if self._count > bounds.total:
            return self._idlest(newcomer, max(self._of.values(), key=len))
        return None

    def _idlest(self, newcomer: G, crowd: dict[G, None]) -> G:
        return min((guest for guest in crowd if guest is not newcomer and guest.idle), key=lambda guest: guest.heard, default=newcomer)
