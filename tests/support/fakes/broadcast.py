"""Spark's broadcast variable, in one process."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Here:
    """A value that went nowhere."""

    value: bytes
