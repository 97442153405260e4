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
        bar = f"copying [{'#' * filled}{'.' * (_BAR - filled)}] {self.share:4.0%}"
        return " | ".join([bar, f"{self.tables_done:,} of {self.tables:,} tables", *self.row_words])

    @property
    def row_words(self) -> tuple[str, ...]:
        """Rows, rate and, if it is known, the time that is left."""
        rows = f"{self.rows:,} rows" + (f" of about {self.expected:,}" if self.expected else "")
        left = self.expected - self.rows
        ends = left > 0 and self.rows_per_second > 0 and self.tables_done < self.tables
        end = (f"about {_time(left / self.rows_per_second)} left",) if ends else ()
        return (rows, f"{self.rows_per_second:,.0f} rows/s", *end)


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
