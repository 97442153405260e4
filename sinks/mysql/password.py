"""Transfers the target's password to the executors. Pure.

Spark stores a task's function, writes it to disk when it is big and sends it over the network; it does the same with a broadcast variable.
Neither may contain the password. So it travels as two values, each of which alone is random bytes: a pad in the function, and the password
XORed with the pad in a broadcast variable. Only a task, which receives both, can restore it.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from pyspark_tidb_binlog.conf.model import TargetConfig


class Broadcast(Protocol):
    """Spark's broadcast variable."""

    @property
    def value(self) -> bytes:
        """The broadcast value."""


@dataclass(frozen=True, slots=True)
class Here:
    """What stands for a broadcast variable where no task needs it: the value stays in this process."""

    value: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ShippedTarget:
    """A target without its password: picklable, and safe to log."""

    public: TargetConfig
    pad: bytes = field(repr=False)
    masked: Broadcast = field(repr=False)

    @classmethod
    def of(cls, target: TargetConfig, broadcast: Callable[[bytes], Broadcast]) -> "ShippedTarget":
        """``target`` prepared for tasks; each call broadcasts a value."""
        password = target.password.encode()
        pad = secrets.token_bytes(len(password))
        return cls(replace(target, password=""), pad, broadcast(_xor(password, pad)))

    def target(self) -> TargetConfig:
        """The target with its password; called in a task."""
        return replace(self.public, password=_xor(self.masked.value, self.pad).decode())


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
