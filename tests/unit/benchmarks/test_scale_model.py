"""What limits each stage in the model of throughput."""

import pytest

from benchmarks.scale_model import BATCH, PLAN, READ, WRITE, Costs, Shape, StageCost, forecast

COSTS = Costs({READ: StageCost(8.0, 0.0, 2.0), PLAN: StageCost(4.0, 0.5, 0.0), WRITE: StageCost(1.0, 6.0, 0.0)}, batch=0.4)


def test_each_stage_takes_as_long_as_its_slowest() -> None:
    found = forecast(COSTS, Shape(pumps=2, parts=4, spark_cores=8, target_cores=2, batch_events=400_000.0))
    assert found.micros == {READ: 4.0, PLAN: 1.0, WRITE: 3.0, BATCH: pytest.approx(1.0)}
    assert found.limits == {READ: "Spark, 2 tasks", PLAN: "Spark, 4 tasks", WRITE: "target, 2 connections"}
    assert found.rate == pytest.approx(1e6 / 9.0)


def test_more_pumps_than_cores_and_more_cores_than_parts_gain_nothing() -> None:
    few = Shape(pumps=4, parts=2, spark_cores=4, target_cores=64)
    many = Shape(pumps=16, parts=2, spark_cores=4, target_cores=64)
    assert forecast(COSTS, few).micros[READ] == forecast(COSTS, many).micros[READ] == 2.0
    assert forecast(COSTS, few).micros[WRITE] == 3.0


def test_shared_cores_do_everything() -> None:
    found = forecast(COSTS, Shape(pumps=2, parts=2, spark_cores=2, target_cores=2, shared=True))
    assert found.limits[READ] == "2 cores"
    assert (found.micros[READ], found.micros[PLAN], found.micros[WRITE]) == (5.0, 2.25, 3.5)
