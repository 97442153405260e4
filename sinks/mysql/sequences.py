"""Sequences at the target: where each one is, and the ``SETVAL`` that takes it beyond the numbers that the upstream has given. [db]

TiDB writes ``SETVAL(s, N)`` when a server takes the numbers up to N into its cache. Servers write at the same time, so 38 may come before 28.

Promises: a sequence never goes back, except that one with CYCLE begins a new round: its last number came before, and a smaller one follows.
So a repeated SETVAL changes nothing, or ends where it ended before.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pyspark_tidb_binlog.schemas.errors import ServerRefused
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.sinks.engine.segments import SetVal
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, table_name
from pyspark_tidb_binlog.sinks.mysql.target import Target


@dataclass(frozen=True, slots=True)
class SequencePlace:
    """Where a sequence of MariaDB is."""

    next_value: int
    """The first number that is not given, or in the server's cache; beyond the bounds: the round is over."""
    minimum: int
    maximum: int
    increment: int
    cycle: bool
    round: int = 0

    def after(self, value: int) -> "SequencePlace | None":
        """The place once the numbers up to ``value`` are given; None: it has passed them."""
        following = value + self.increment
        if (following - self.next_value) * self.increment > 0:
            return replace(self, next_value=following)
        over = not self.minimum <= self.next_value <= self.maximum
        if over and self.cycle and self.minimum <= following <= self.maximum:
            return replace(self, next_value=following, round=self.round + 1)
        return None


def place_of(session: Target, schema: str, name: str) -> SequencePlace:
    """Where the sequence is; MariaDB only."""
    columns = "next_not_cached_value, minimum_value, maximum_value, increment, cycle_option, cycle_count"
    ((following, least, most, step, cycle, rounds),) = session.query(f"SELECT {columns} FROM {table_name(schema, name)}")
    return SequencePlace(int(following), int(least), int(most), int(step), bool(cycle), int(rounds))


def set_sequences(session: Target, setvals: Iterable[SetVal]) -> tuple[Finding, ...]:
    """Execute ``setvals``, at most two statements for each sequence; a finding for each sequence that the target lacks, or refuses."""
    values: dict[tuple[str, str], list[int]] = {}
    for one in setvals:
        values.setdefault((one.schema, one.name), []).append(one.value)
    found = []
    for (schema, name), numbers in values.items():
        try:
            _set(session, schema, name, numbers)
        except ServerRefused as error:
            words = f"after a fail-over NEXTVAL may repeat numbers of the upstream, because SETVAL is refused. Make the sequence there, or GRANT INSERT: {error}"
            found.append(Finding(FindingKind.DDL, words, table_name(schema, name)))
    return tuple(found)


def _set(session: Target, schema: str, name: str, values: Sequence[int]) -> None:
    sequence = table_name(schema, name)
    if session.flavour is Flavour.TIDB:
        # TiDB ignores a SETVAL behind its position, so the highest and the lowest are both sent. There is no way to begin a new round.
        for value in (max(values), min(values)):
            session.query(f"SELECT SETVAL({sequence}, {value})")
        return
    place, reached = place_of(session, schema, name), None
    for value in values:
        if (now := place.after(value)) is not None:
            place, reached = now, value
    if reached is not None:
        session.query(f"SELECT SETVAL({sequence}, {reached}, 1, {place.round})")
