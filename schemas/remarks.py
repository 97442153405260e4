"""A remark of ``--check``: something that an operator should know before a stream starts. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing that was found."""

    hinders: bool
    """The stream stops at it, or loses something; otherwise it is only worth knowing."""
    where: str
    """The setting, server, database or table."""
    what: str
    todo: str
    """What to do about it; empty = nothing."""

    @property
    def words(self) -> str:
        """One line."""
        text = f"{'hinders' if self.hinders else 'note   '}  {self.where}: {self.what}"
        return " ".join((f"{text}; {self.todo}" if self.todo else text).split("\n"))


def hinders(where: str, what: str, todo: str) -> Remark:
    """A remark on what stops the stream."""
    return Remark(True, where, what, todo)


def note(where: str, what: str, todo: str = "") -> Remark:
    """A remark on what is worth knowing."""
    return Remark(False, where, what, todo)


def some(names: Sequence[str], most: int) -> str:
    """The first ``most`` of the names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
