"""The standalone registry's node states: what their file keeps, and revisions that never go back."""

import json
from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registry import DRAINERS, PUMPS, NodeStatus
from pyspark_tidb_binlog.jobs.lab.registry.nodes import Nodes, NodesClosed

A, B = NodeStatus("a", "h:1"), NodeStatus("b", "h:2")


def test_a_later_life_knows_nodes_and_revisions(tmp_path: Path) -> None:
    first = Nodes(tmp_path / "nodes.json")
    first.put(PUMPS, A)
    known = first.listing(PUMPS).revision
    first.put(DRAINERS, B)
    second = Nodes(tmp_path / "nodes.json")
    assert second.listing(PUMPS).nodes == (A,)
    assert second.changes(PUMPS, known, 0).nodes == ()
    assert second.changes(DRAINERS, known, 0).nodes == (B,)
    second.put(PUMPS, A)
    assert second.listing(PUMPS).revision > first.listing(PUMPS).revision


def test_a_clock_that_went_back_does_not_turn_revisions_back(tmp_path: Path) -> None:
    far = 1 << 50
    (tmp_path / "nodes.json").write_text(json.dumps({PUMPS: [A.to_dict() | {"revision": far}], DRAINERS: []}))
    nodes = Nodes(tmp_path / "nodes.json")
    nodes.put(PUMPS, B)
    assert nodes.changes(PUMPS, far, 0).nodes == (B,)


def test_nodes_without_a_revision_are_older_than_any(tmp_path: Path) -> None:
    (tmp_path / "nodes.json").write_text(json.dumps({PUMPS: [A.to_dict()], DRAINERS: []}))
    nodes = Nodes(tmp_path / "nodes.json")
    assert nodes.changes(PUMPS, 0, 0).nodes == nodes.listing(PUMPS).nodes == (A,)


def test_a_life_without_a_file_begins_above_the_one_before() -> None:
    first = Nodes()
    first.put(PUMPS, A)
    known = first.listing(PUMPS).revision - 1
    second = Nodes()
    second.put(PUMPS, B)
    assert second.changes(PUMPS, known, 0).nodes == (B,)


def test_closed_nodes_keep_nobody_waiting() -> None:
    nodes = Nodes()
    nodes.close()
    with pytest.raises(NodesClosed):
        nodes.changes(PUMPS, nodes.listing(PUMPS).revision, 60)
