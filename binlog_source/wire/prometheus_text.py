"""Metrics in Prometheus' text format, for ``GET /metrics`` of a Pump and of a Drainer. No other file imports ``prometheus_client``.

Promises: an observation computes its bucket instead of searching it, so the write path of a Pump can make several for each binlog. The
library makes the text, on request. Names are written exactly as given: the library's own counters would get the suffix ``_total``, which a
real Pump's and Drainer's do not have.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

Family = Metric
"""One metric with all its label values."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class PowerHistogram:
    """A histogram with the upper bounds base * 2^i. Not thread-safe: its owner locks."""

    def __init__(self, base: float, buckets: int) -> None:
        self._base = base
        self._bounds = [base * 2**i for i in range(buckets)]
        self._counts = [0] * (buckets + 1)
        self._sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count one value, ``times`` times."""
        self._sum += value * times
        ratio = value / self._base
        if ratio <= 1.0:
            self._counts[0] += times
            return
        mantissa, exponent = math.frexp(ratio)
        # upper bounds are inclusive
        place = exponent - 1 if mantissa == 0.5 else exponent
        self._counts[min(place, len(self._bounds))] += times

    def family(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative counts by upper bound, and the sum."""
        total, rows = 0, []
        for bound, count in zip([*map(repr, map(float, self._bounds)), "+Inf"], self._counts, strict=True):
            total += count
            rows.append((bound, float(total)))
        return rows, self._sum


@dataclass(slots=True)
class LabelledHistogram:
    """One histogram for each combination of label values. Not thread-safe: its owner locks."""

    name: str
    help: str
    labels: tuple[str, ...]
    base: float
    buckets: int
    of: dict[tuple[str, ...], PowerHistogram] = field(default_factory=dict)

    def add(self, labels: tuple[str, ...], value: float, times: int = 1) -> None:
        """Count one value for these label values, ``times`` times."""
        self.touch(labels).add(value, times)

    def touch(self, labels: tuple[str, ...]) -> PowerHistogram:
        """The histogram for these label values; from now on it is shown, even without any value."""
        found = self.of.get(labels)
        if found is None:
            found = self.of[labels] = PowerHistogram(self.base, self.buckets)
        return found

    def family(self) -> Family:
        """Its current state."""
        family = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        for labels, histogram in sorted(self.of.items()):
            rows, total = histogram.family()
            family.add_metric(labels, rows, total)
        return family


def gauge(name: str, text: str, value: float) -> Family:
    """A gauge without labels."""
    return GaugeMetricFamily(name, text, value=value)


def gauges(name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Family:
    """A gauge for each value of one label; ``label`` empty: without labels."""
    family = GaugeMetricFamily(name, text, labels=(label,) if label else ())
    for of, value in values:
        family.add_metric((of,) if label else (), value)
    return family


def count(name: str, text: str, label: str, counts: Iterable[tuple[str, float]]) -> Family:
    """A counter under its exact name, for each value of one label; ``label`` empty: without labels."""
    family = Metric(name, text, "unknown")
    for of, value in counts:
        family.add_sample(name, {label: of} if label else {}, value)
    return family


class Exposition:
    """The text of one process's metrics: its own, and those of the process itself (memory, descriptors, garbage collection)."""

    def __init__(self, collect: Callable[[], Iterator[Family]]) -> None:
        """``collect`` is called for each text."""
        self._collect = collect
        self._registry = CollectorRegistry()
        self._registry.register(self)
        for standard in (ProcessCollector, PlatformCollector, GCCollector):
            standard(registry=self._registry)

    def describe(self) -> Iterator[Family]:
        """Nothing: without it the library would collect once to find the names."""
        return iter(())

    def collect(self) -> Iterator[Family]:
        """All of its own, for the library."""
        yield from self._collect()

    def text(self) -> bytes:
        """The text."""
        return generate_latest(self._registry)
