"""Memory for large requests: the cap, the order, and that it all comes back."""

from pyspark_tidb_binlog.binlog_source.rpc.memory import BoundedMemory


def test_requests_are_admitted_up_to_the_cap_in_order():
    memory, admitted = BoundedMemory(100), []
    for name, size in (("a", 60), ("b", 50), ("c", 10), ("d", 40)):
        memory.ask(name, size, lambda name=name: admitted.append(name))
    assert admitted == ["a"] and memory.held == 60, "a small one does not overtake a large one"
    memory.forget("b")
    assert admitted == ["a", "c"] and memory.held == 70, "who gives up makes room in the line"
    memory.forget("a")
    assert admitted == ["a", "c", "d"] and memory.held == 50
    for name in "cda":
        memory.forget(name)
    assert memory.held == 0 and not memory._waiting and not memory._admitted


def test_one_request_may_be_larger_than_the_cap():
    memory, admitted = BoundedMemory(100), []
    for name in "ab":
        memory.ask(name, 1000, lambda name=name: admitted.append(name))
    assert admitted == ["a"] and memory.held == 1000
    memory.forget("a")
    assert admitted == ["a", "b"]
