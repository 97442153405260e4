"""A model of a backlog's throughput from measured costs, and what it gives for other machines. Pure.

A batch passes its stages one after another: read (with pairing), plan+delete, write. Reading takes the time of its slowest participant, because all work at
the same time. The other stages take the sum of Spark's and the target's time, because a part's task plans a piece, sends it and waits for the answer:

    Spark     its CPU per row event, on as many cores as there are tasks: one per Pump (raw: per bucket) while reading, one per part afterwards
    target    its CPU per row event, on as many cores as there are connections: one per part
    Pumps     their CPU per row event, each Pump on a core of its own

If all of them share the same cores, a stage takes the sum of their CPU on these cores. Each batch also costs a constant time. Raw delivery pairs
while it reads, with one task per bucket.
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
class Spent:
    """What a backlog took."""

    events: int
    batches: int
    cpu: Mapping[str, StageCost]
    """CPU of each stage in microseconds, all events together."""
    in_stages: float
    """Wall-clock seconds of all stages."""
    seconds: float
    """Wall-clock seconds of everything."""


@dataclass(frozen=True, slots=True)
class Costs:
    """The constants of the model."""

    stages: Mapping[str, StageCost]
    in_stages: float
    """What a batch costs in its stages, however many row events it has. Seconds."""
    between: float
    """What it costs beside them. Seconds."""


def costs_of(whole: Spent, cut: Spent) -> Costs:
    """The constants from the same backlog in few batches and in many: what more batches take is a batch's, the rest the events'."""
    more = cut.batches - whole.batches
    in_stages = (cut.in_stages - whole.in_stages) / more
    between = (cut.seconds - whole.seconds) / more - in_stages

    def per_event(of_whole: float, of_cut: float) -> float:
        of_batch = max(0.0, (of_cut - of_whole) / more)
        return max(0.0, of_whole - of_batch * whole.batches) / whole.events

    stages = {
        stage: StageCost(
            per_event(whole.cpu[stage].spark, cut.cpu[stage].spark),
            per_event(whole.cpu[stage].target, cut.cpu[stage].target),
            per_event(whole.cpu[stage].pumps, cut.cpu[stage].pumps),
        )
        for stage in STAGES
    }
    return Costs(stages, max(0.0, in_stages), max(0.0, between))


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
    buckets: int = 0
    """Pairing buckets of raw delivery; 0 with sorted delivery."""


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
        times = _times(costs.stages[stage], shape, max(shape.pumps, shape.buckets) if stage == READ else shape.parts)
        limits[stage] = max(times, key=times.__getitem__)
        micros[stage] = times[limits[stage]] if stage == READ else max(times[limits[stage]], _in_turn(costs.stages[stage], shape))
    micros[BATCH] = 1e6 * (costs.in_stages + costs.between) / shape.batch_events
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


def _in_turn(cost: StageCost, shape: Shape) -> float:
    """Microseconds per row event of a stage in which a part's task and its connection to the target take turns."""
    return cost.spark / min(shape.parts, shape.spark_cores) + cost.target / min(shape.parts, shape.target_cores)
