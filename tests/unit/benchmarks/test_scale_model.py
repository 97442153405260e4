"""What limits each stage in the model of throughput."""

import pytest

from benchmarks.scale_model import BATCH, PLAN, READ, WRITE, Costs, Shape, Spent, StageCost, costs_of, forecast

COSTS = Costs({READ: StageCost(8.0, 0.0, 2.0), PLAN: StageCost(4.0, 0.5, 0.0), WRITE: StageCost(1.0, 6.0, 0.0)}, in_stages=0.3, between=0.1)


def test_reading_takes_as_long_as_its_slowest_and_a_part_plans_and_writes_in_turn() -> None:
    found = forecast(COSTS, Shape(pumps=2, parts=4, spark_cores=8, target_cores=2, batch_events=400_000.0))
    assert found.micros == {READ: 4.0, PLAN: 1.25, WRITE: 3.25, BATCH: pytest.approx(1.0)}
    assert found.limits == {READ: "Spark, 2 tasks", PLAN: "Spark, 4 tasks", WRITE: "target, 2 connections"}
    assert found.rate == pytest.approx(1e6 / 9.5)


def test_more_pumps_than_cores_and_more_cores_than_parts_gain_nothing() -> None:
    few = Shape(pumps=4, parts=2, spark_cores=4, target_cores=64)
    many = Shape(pumps=16, parts=2, spark_cores=4, target_cores=64)
    assert forecast(COSTS, few).micros[READ] == forecast(COSTS, many).micros[READ] == 2.0
    assert forecast(COSTS, few).micros[WRITE] == 3.5


def test_shared_cores_do_everything() -> None:
    found = forecast(COSTS, Shape(pumps=2, parts=2, spark_cores=2, target_cores=2, shared=True))
    assert found.limits[READ] == "2 cores"
    assert (found.micros[READ], found.micros[PLAN], found.micros[WRITE]) == (5.0, 2.25, 3.5)


def test_raw_delivery_reads_with_a_task_per_bucket() -> None:
    assert forecast(COSTS, Shape(pumps=1, parts=2, spark_cores=4, target_cores=4, buckets=8)).limits[READ] == "Spark, 4 tasks"


def test_what_more_batches_take_is_a_batch_s() -> None:
    none = StageCost(0.0, 0.0, 0.0)
    whole = Spent(1000, 1, {READ: StageCost(9000.0, 0.0, 2000.0), PLAN: none, WRITE: none}, in_stages=4.0, seconds=7.0)
    cut = Spent(1000, 5, {READ: StageCost(13_000.0, 0.0, 1000.0), PLAN: none, WRITE: none}, in_stages=6.0, seconds=13.0)
    found = costs_of(whole, cut)
    assert found.stages[READ] == StageCost(8.0, 0.0, 2.0)
    assert (found.in_stages, found.between) == (0.5, 1.0)
