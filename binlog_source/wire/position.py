"""A position in a Pump's value log, as Pump and readers express it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A position in a Pump's log: value-log file id, byte offset. Ordered."""

    suffix: int
    offset: int

    def to_json(self) -> dict[str, int]:
        """The position as a JSON object."""
        return {"offset": self.offset, "suffix": self.suffix}
