"""The target's password on its way to the executors. Pure.

A task's function is written to disk when it is big, kept by Spark and sent over the network, and so is a broadcast variable: neither may hold the
password. It goes in two halves that are random bytes each on their own: a pad in the function, and what the pad makes of the password in a
broadcast variable. Only a task, which has both, can put them together.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from conf.model import TargetConfig


class Broadcast(Protocol):
    """Spark's broadcast variable."""

    @property
    def value(self) -> bytes:
        """What was broadcast."""


@dataclass(frozen=True, slots=True)
class ShippedTarget:
    """A target whose password is not in it: picklable, and safe to show."""

    public: TargetConfig
    pad: bytes = field(repr=False)
    masked: Broadcast = field(repr=False)

    @classmethod
    def of(cls, target: TargetConfig, broadcast: Callable[[bytes], Broadcast]) -> "ShippedTarget":
        """``target`` for tasks; each call broadcasts."""
        password = target.password.encode()
        pad = secrets.token_bytes(len(password))
        return cls(replace(target, password=""), pad, broadcast(_xor(password, pad)))

    def target(self) -> TargetConfig:
        """The target as it was, in a task."""
        return replace(self.public, password=_xor(self.masked.value, self.pad).decode())


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
