"""A model of a backlog's throughput from measured costs, and what it gives for other machines. Pure.

A batch passes its stages one after another: read (with pairing), plan+delete, write. Each stage takes as long as the slowest of what works in
it at the same time:

    Spark     its CPU per row event, on as many cores as there are tasks: one per Pump while reading, one per part afterwards
    target    its CPU per row event, on as many cores as there are connections: one per part
    Pumps     their CPU per row event, each Pump on a core of its own

or, where all of them share the same cores, as long as all of their CPU takes there. A batch costs a constant time besides.
"""

from collections.abc import Mapping
from dataclasses import dataclass

READ, PLAN, WRITE = "read", "plan+delete", "write"
STAGES = (READ, PLAN, WRITE)
BATCH = "batch"


@dataclass(frozen=True, slots=True)
class StageCost:
    """CPU of one stage, in microseconds per row event."""

    spark: float
    target: float
    pumps: float


@dataclass(frozen=True, slots=True)
class Costs:
    """What was measured."""

    stages: Mapping[str, StageCost]
    batch: float
    """What a batch costs however many row events it has. Seconds."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A machine, or several, and the settings that matter."""

    pumps: int
    parts: int
    spark_cores: int
    target_cores: int
    shared: bool = False
    """Spark, target and Pumps are on the same ``spark_cores`` cores."""
    batch_events: float = 800_000.0
    """Row events of a batch."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the model gives for a shape."""

    micros: Mapping[str, float]
    """Per row event, by stage; ``BATCH`` is the batch's own cost."""
    limits: Mapping[str, str]
    """What limits each stage."""

    @property
    def rate(self) -> float:
        """Row events a second."""
        return 1e6 / sum(self.micros.values())


def forecast(costs: Costs, shape: Shape) -> Forecast:
    """The throughput for ``shape``."""
    micros, limits = {}, {}
    for stage in STAGES:
        times = _times(costs.stages[stage], shape, shape.pumps if stage == READ else shape.parts)
        limits[stage] = max(times, key=times.__getitem__)
        micros[stage] = times[limits[stage]]
    micros[BATCH] = 1e6 * costs.batch / shape.batch_events
    return Forecast(micros, limits)


def _times(cost: StageCost, shape: Shape, tasks: int) -> dict[str, float]:
    """Microseconds per row event by what could limit a stage of so many tasks."""
    times = {
        f"Spark, {min(tasks, shape.spark_cores)} tasks": cost.spark / min(tasks, shape.spark_cores),
        f"target, {min(shape.parts, shape.target_cores)} connections": cost.target / min(shape.parts, shape.target_cores),
        f"{shape.pumps} Pumps": cost.pumps / shape.pumps,
    }
    if shape.shared:
        times[f"{shape.spark_cores} cores"] = (cost.spark + cost.target + cost.pumps) / shape.spark_cores
    return times
