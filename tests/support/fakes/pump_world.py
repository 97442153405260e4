"""Pumps and time in memory, for the Pump client: calls are answered by a rule for each address, waiting costs nothing.

Promises: every call and every connection is recorded, with the fake time. Safe for many threads.
"""

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyspark_tidb_binlog.binlog_source.pump_client.pump_set import Dependencies
from pyspark_tidb_binlog.binlog_source.pump_client.writer import WriteFailed

Rule = Callable[[Sequence[bytes]], WriteFailed | None]
"""What a Pump says to these payloads; None = it takes them."""


def takes(payloads: Sequence[bytes]) -> None:
    """A good Pump."""


def fails(code: str = "UNAVAILABLE", text: str = "connection refused") -> Rule:
    """A Pump that always fails in this way."""
    return lambda payloads: WriteFailed(f"Pump: {code} {text}", code, text)


class FakeClock:
    """A clock that a wait moves on at once."""

    def __init__(self) -> None:
        self.time = 0.0
        self.waits: list[float] = []
        self.closed = False
        self._lock = threading.Lock()

    def now(self) -> float:
        return self.time

    def wait(self, seconds: float) -> bool:
        with self._lock:
            self.time += seconds
            self.waits.append(seconds)
        return self.closed

    def close(self) -> None:
        self.closed = True


@dataclass(frozen=True)
class Call:
    address: str
    payloads: tuple[bytes, ...]
    at: float


@dataclass
class World:
    """``rules``: address -> what the Pump there says; an address without one is a good Pump."""

    rules: dict[str, Rule] = field(default_factory=dict)
    clock: FakeClock = field(default_factory=FakeClock)
    calls: list[Call] = field(default_factory=list)
    dialled: list[str] = field(default_factory=list)
    hung_up: list[str] = field(default_factory=list)

    def dependencies(self, seed: int = 1) -> Dependencies:
        return Dependencies(lambda address: Wire(self, address), self.clock, random.Random(seed))

    def taken(self, address: str) -> list[bytes]:
        """What the Pump at ``address`` was asked to take."""
        return [payload for call in self.calls if call.address == address for payload in call.payloads]


@dataclass
class Wire:
    """A connection."""

    world: World
    address: str

    def __post_init__(self) -> None:
        self.world.dialled.append(self.address)

    def write(self, payload: bytes) -> None:
        self.write_many([payload])

    def write_many(self, payloads: Sequence[bytes]) -> None:
        self.world.calls.append(Call(self.address, tuple(payloads), self.world.clock.now()))
        failure = self.world.rules.get(self.address, takes)(payloads)
        if failure is not None:
            raise failure

    def close(self) -> None:
        self.world.hung_up.append(self.address)
