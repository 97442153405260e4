"""Pump processes that die, freeze, pause, join, leave and return while others serve: the events, and the Pumps that they happen to.

Promises: ``draw`` is pure: the same seed gives the same events; which Pump one happens to depends on who serves then. Events overlap, but at least
``FLOOR`` Pumps serve at any time. Each event is seen through: who is paused or offline is registered so, who comes back serves again.
"""

import contextlib
import enum
import json
import os
import random
import signal
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from pyspark_tidb_binlog.binlog_source.cluster.registry import PUMPS, NodeState
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import RegistryClient
from pyspark_tidb_binlog.conf.model import PumpConfig
from pyspark_tidb_binlog.jobs.lab.pump_process import PumpProcess

FLOOR = 2
_FIRST, _MOST = 3, 6
"""Pumps at the beginning; not offline at any time."""
_AT_ONCE = 3
"""Events under way at the same time: the Drainer gets on only while nobody is away."""
_PATIENCE = 120.0
"""Seconds that an event may wait for its Pump, and a Pump for its Drainer."""


class Kind(enum.StrEnum):
    """What may happen to a Pump."""

    KILL = "kill"
    """``kill -9``, and a start."""
    FREEZE = "freeze"
    """Stopped by a signal and let go on: what was sent to it meanwhile is written late, when another Pump may have it too."""
    PAUSE = "pause"
    """Ended in order by ``PUT pause``, and a start."""
    JOIN = "join"
    """One that nobody knew."""
    LEAVE = "leave"
    """Ended by ``PUT close``, when the Drainer has everything."""
    ABORT = "abort"
    """``PUT close``, and ``kill -9`` somewhere on the way to offline; a start."""
    RETURN = "return"
    """One that left is started on its old directory."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing to happen."""

    kind: Kind
    gap: float
    """Seconds after the event before began."""
    away: float
    """Seconds between a Pump's end and its next start."""
    pick: float
    """Which of those who may be chosen, 0 to below 1."""
    moves: bool
    """It comes back at another port."""


@dataclass(frozen=True, slots=True)
class Happened:
    """One thing that has happened."""

    kind: Kind
    pump: str
    began: float
    """Seconds since ``play`` began."""
    took: float
    address: str

    def __str__(self) -> str:
        return f"{self.began:6.1f} s  {self.kind:<6}  {self.pump:<7} for {self.took:4.1f} s, {self.address}"


def draw(chance: random.Random, count: int, longest_gap: float, longest_away: float, least: int = 2) -> tuple[Event, ...]:
    """Events in random order, ``least`` of each kind at the least, so that nobody returns who has not left and never too few or too many serve."""
    kinds: list[Kind] = []
    while not kinds or not _possible(kinds):
        kinds = [*list(Kind) * least, *chance.choices(list(Kind), k=count - least * len(Kind))]
        chance.shuffle(kinds)
    return tuple(
        Event(kind, chance.uniform(0, longest_gap), chance.uniform(0, longest_away), chance.random(), chance.random() < 0.3)
        for kind in kinds
    )


def _possible(kinds: list[Kind]) -> bool:
    members, offline = _FIRST, 0
    for kind in kinds:
        members += (kind in (Kind.JOIN, Kind.RETURN)) - (kind is Kind.LEAVE)
        offline += (kind is Kind.LEAVE) - (kind is Kind.RETURN)
        if offline < 0 or not _FIRST <= members <= _MOST:
            return False
    return True


class _Standing(enum.Enum):
    SERVING = "serving"
    AWAY = "away"
    OFFLINE = "offline"


class Herd:
    """The Pumps of one cluster."""

    def __init__(self, directory: Path, registry_url: str, cluster_id: int) -> None:
        """Nothing runs before the ``with`` block. ``directory`` gets their data directories."""
        self._directory = directory
        self._registry_url = registry_url
        self._cluster_id = cluster_id
        self._changed = threading.Condition()
        self._pumps: dict[str, PumpProcess] = {}
        self._standing: dict[str, _Standing] = {}
        self._began = 0.0

    def __enter__(self) -> Self:
        """Start the first ones, at the same time."""
        directory = self._directory
        directory.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop)
            with ThreadPoolExecutor(_FIRST) as pool:
                list(pool.map(lambda _: self._start(self._new()), range(_FIRST)))
            undo.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop whoever runs."""
        self.stop()

    def stop(self) -> None:
        """Stop whoever runs."""
        for pump in self._pumps.values():
            pump.stop()

    @property
    def addresses(self) -> dict[str, str]:
        """Where each Pump serves that does."""
        return {name: self._pumps[name].address for name in self._who(_Standing.SERVING)}

    @property
    def offline(self) -> tuple[str, ...]:
        """Who has left."""
        return self._who(_Standing.OFFLINE)

    def play(self, events: tuple[Event, ...], tell: Callable[[Happened], None] = lambda happened: None) -> Counter[Kind]:
        """Let it all happen, ``tell`` of each when it is over, and return when all is: how often what happened."""
        self._began = time.monotonic()
        with ThreadPoolExecutor(_AT_ONCE, "event") as pool:
            try:
                running = []
                for event in events:
                    time.sleep(event.gap)
                    running.append(pool.submit(lambda event=event: tell(self._happen(event))))
                    for one in running:
                        if one.done():
                            one.result()
                for one in running:
                    one.result()
            finally:
                pool.shutdown(cancel_futures=True)
        return Counter(event.kind for event in events)

    def bring_back(self) -> None:
        """Start everyone who has left."""
        for _ in self.offline:
            self._start(self._take(_Standing.OFFLINE, 0, 0))

    def _happen(self, event: Event) -> Happened:
        began = time.monotonic()
        pump = {
            Kind.KILL: self._kill,
            Kind.FREEZE: self._freeze,
            Kind.PAUSE: self._pause,
            Kind.JOIN: self._join,
            Kind.LEAVE: self._leave,
            Kind.ABORT: self._abort,
            Kind.RETURN: self._return,
        }[event.kind](event)
        now = time.monotonic()
        return Happened(event.kind, pump.config.node_id, began - self._began, now - began, pump.address)

    def _kill(self, event: Event) -> PumpProcess:
        pump = self._take(_Standing.SERVING, event.pick, FLOOR)
        pump.kill()
        time.sleep(event.away)
        return self._start(pump, event.moves)

    def _freeze(self, event: Event) -> PumpProcess:
        pump = self._take(_Standing.SERVING, event.pick, FLOOR)
        os.kill(pump.pid, signal.SIGSTOP)
        time.sleep(event.away)
        os.kill(pump.pid, signal.SIGCONT)
        self._put(pump, _Standing.SERVING)
        return pump

    def _pause(self, event: Event) -> PumpProcess:
        pump = self._take(_Standing.SERVING, event.pick, FLOOR)
        self._ask(pump, "pause")
        self._await(pump, NodeState.PAUSED)
        time.sleep(event.away)
        return self._start(pump, event.moves)

    def _join(self, event: Event) -> PumpProcess:
        return self._start(self._new())

    def _leave(self, event: Event) -> PumpProcess:
        pump = self._take(_Standing.SERVING, event.pick, FLOOR)
        self._ask(pump, "close")
        self._await(pump, NodeState.OFFLINE)
        self._put(pump, _Standing.OFFLINE)
        return pump

    def _abort(self, event: Event) -> PumpProcess:
        pump = self._take(_Standing.SERVING, event.pick, FLOOR)
        self._ask(pump, "close")
        time.sleep(event.away)
        pump.kill()
        return self._start(pump, event.moves)

    def _return(self, event: Event) -> PumpProcess:
        return self._start(self._take(_Standing.OFFLINE, event.pick, 0), event.moves)

    def _new(self) -> PumpProcess:
        with self._changed:
            name = f"pump-{len(self._pumps) + 1}"
            config = PumpConfig(
                node_id=name,
                addr="127.0.0.1:0",
                data_dir=str(self._directory / name),
                registry=self._registry_url,
                cluster_id=self._cluster_id,
                fake_binlog_interval=0.2,
                heartbeat_interval=0.5,
                stop_write_at_available_space="",
            )
            pump = self._pumps[name] = PumpProcess(config)
            self._standing[name] = _Standing.AWAY
        return pump

    def _start(self, pump: PumpProcess, moves: bool = False) -> PumpProcess:
        if moves:
            name = pump.config.node_id
            pump = PumpProcess(replace(pump.config, addr="127.0.0.1:0"))
            self._pumps[name] = pump
        pump.start()
        self._put(pump, _Standing.SERVING)
        return pump

    def _ask(self, pump: PumpProcess, action: str) -> None:
        request = urllib.request.Request(f"http://{pump.address}/state/{pump.config.node_id}/{action}", method="PUT")
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert json.load(answer)["code"] == 200

    def _await(self, pump: PumpProcess, state: NodeState) -> None:
        """It ends its process itself, registered in ``state``."""
        assert pump.wait(_PATIENCE) == 0
        registry = RegistryClient(self._registry_url)
        states = {status.node_id: status.state for status in registry.listing(PUMPS).nodes}
        registry.close()
        assert states[pump.config.node_id] is state

    def _take(self, standing: _Standing, pick: float, left: int) -> PumpProcess:
        """One of those with this standing, once more than ``left`` have it."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._who(standing)) > left, _PATIENCE), (
                f"nobody is {standing.value}: {self._standing}"
            )
            there = self._who(standing)
            name = there[int(pick * len(there))]
            self._standing[name] = _Standing.AWAY
            return self._pumps[name]

    def _put(self, pump: PumpProcess, standing: _Standing) -> None:
        with self._changed:
            self._standing[pump.config.node_id] = standing
            self._changed.notify_all()

    def _who(self, standing: _Standing) -> tuple[str, ...]:
        return tuple(name for name, known in self._standing.items() if known is standing)
