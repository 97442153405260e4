"""The progress of a copy, as text for people. Pure."""

from dataclasses import dataclass

_BAR = 24


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """The state of a copy at one moment."""

    tables: int
    tables_done: int
    rows: int
    """Copied, earlier lives included."""
    expected: int
    """About how many rows there are altogether, as the upstream estimates; 0 = unknown."""
    rows_per_second: float
    """Of this life."""

    @property
    def share(self) -> float:
        """From 0 to 1, by rows where their number is known, and never 1 before the last table."""
        by_tables = self.tables_done / self.tables if self.tables else 1.0
        if not self.expected or self.tables_done == self.tables:
            return by_tables
        return min(self.rows / self.expected, 0.99)

    def words(self) -> str:
        """One line: a bar, tables, rows, rate and the time that is left."""
        filled = int(self.share * _BAR)
        parts = [
            f"copying [{'#' * filled}{'.' * (_BAR - filled)}] {self.share:4.0%}",
            f"{self.tables_done:,} of {self.tables:,} tables",
            f"{self.rows:,} rows" + (f" of about {self.expected:,}" if self.expected else ""),
            f"{self.rows_per_second:,.0f} rows/s",
        ]
        left = self.expected - self.rows
        if left > 0 and self.rows_per_second > 0 and self.tables_done < self.tables:
            parts.append(f"about {_time(left / self.rows_per_second)} left")
        return " | ".join(parts)


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
