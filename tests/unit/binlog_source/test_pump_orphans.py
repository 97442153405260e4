"""What a Pump writes for an orphan Prewrite, by what the upstream says of it; and the alarm when nobody says anything."""

import contextlib
import logging
import threading
import time

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.txn_outcome import Reading, TransactionState, Verdict, outcome_payload
from pyspark_tidb_binlog.binlog_source.pump.orphans import OrphanResolver, near_present, settle
from pyspark_tidb_binlog.binlog_source.pump.service import PumpService
from pyspark_tidb_binlog.binlog_source.pump.storage.record import RecordKind, canonical, fake
from pyspark_tidb_binlog.binlog_source.pump.storage.store import Store, StoreSettings
from pyspark_tidb_binlog.schemas.errors import ConfigError, PumpUnavailable
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from tests.support.fakes.faulty_files import flip

START = tso(1_000_000)


@pytest.mark.parametrize(("commit_ts", "want"), [(9, (RecordKind.COMMIT, 5, 9)), (0, (RecordKind.ROLLBACK, 5, 0))])
def test_outcome(commit_ts, want):
    assert canonical(outcome_payload(5, commit_ts))[:3] == want


@pytest.fixture
def service(tmp_path):
    store = Store(tmp_path, StoreSettings(sync=False))
    store.write([canonical(binlog_pb2.Binlog(tp=0, start_ts=START, prewrite_key=b"k").SerializeToString())])
    store.catch_up()
    yield PumpService(store, 7, "p")
    store.close()


def test_a_young_prewrite_is_not_asked_about(service):
    asked = []

    def addresses():
        asked.append(1)
        return ()

    OrphanResolver(service, addresses, now_ms=lambda: 1_000_500)()
    assert asked == []
    OrphanResolver(service, addresses, now_ms=lambda: 1_002_000)()
    assert asked == [1]


def test_the_alarm_names_the_prewrite_and_the_setting(service, caplog):
    resolver = OrphanResolver(service, lambda: (), now_ms=lambda: 1_002_000)
    with caplog.at_level(logging.ERROR):
        resolver()
        resolver()
    assert len(caplog.records) == 1, "said once in ten seconds"
    for part in ("Pump p: 1 Prewrites wait", f"start_ts {START}", "none is known", "tidb-status"):
        assert part in caplog.text


def test_what_the_upstream_says_is_written(service, monkeypatch):
    monkeypatch.setattr(
        "pyspark_tidb_binlog.binlog_source.cluster.status_port.StatusPorts.ask",
        lambda ports, start_ts, key: Verdict(TransactionState.COMMITTED, START + 5),
    )
    OrphanResolver(service, lambda: ("h:1",), now_ms=lambda: 1_002_000)()
    assert service.store.catch_up().sorted_promise == START + 5


def test_a_prewrite_that_cannot_be_read_holds_up_no_other(service, monkeypatch, tmp_path, caplog):
    service.store.write([canonical(binlog_pb2.Binlog(tp=0, start_ts=START + 1, prewrite_key=b"l").SerializeToString())])
    service.store.catch_up()
    flip(tmp_path / "value" / "000000.vlog", 20)
    asked = []

    def ask(ports, start_ts, key):
        asked.append(start_ts)
        return Verdict(TransactionState.COMMITTED, start_ts + 5)

    monkeypatch.setattr("pyspark_tidb_binlog.binlog_source.cluster.status_port.StatusPorts.ask", ask)
    resolver = OrphanResolver(service, lambda: ("h:1",), now_ms=lambda: 1_002_000)
    with caplog.at_level(logging.ERROR):
        resolver()
        service.store.catch_up()
        resolver()
    assert asked == [START + 1] and service.store.catch_up() and service.store.entry(START + 6)
    (left,) = resolver.waiting()
    assert left["start_ts"] == START and "cannot be read" in left["undecided"] and f"/orphans/{START}/rollback" in left["undecided"]
    assert caplog.text.count("cannot be read") == 1


def test_a_failing_port_is_no_verdict(service, monkeypatch, caplog):
    def refuse(ports, start_ts, key):
        raise PumpUnavailable("no status port answers")

    monkeypatch.setattr("pyspark_tidb_binlog.binlog_source.cluster.status_port.StatusPorts.ask", refuse)
    resolver = OrphanResolver(service, lambda: ("h:1",), now_ms=lambda: 1_002_000)
    resolver()
    assert "no status port answers" in caplog.text and service.store.catch_up().sorted_promise == 0


def resolved(service, monkeypatch, verdict, safe_point, **more):
    monkeypatch.setattr("pyspark_tidb_binlog.binlog_source.cluster.status_port.StatusPorts.ask", lambda ports, start_ts, key: verdict)
    running = iter(Reading("c", ms) for ms in range(0, 10**9, 601_000))
    resolver = OrphanResolver(
        service,
        lambda: ("h:1",),
        now_ms=lambda: 1_000_000 + 601_000,
        safe_point=lambda ports: safe_point,
        address="p:8250",
        running=lambda: next(running),
        **more,
    )
    resolver()
    assert service.store.orphans(1 << 62), "it is seen for the first time"
    return resolver


def test_a_clock_that_is_ahead_settles_nothing(service, monkeypatch):
    """PD's, or this machine's: by either the Prewrite is twenty minutes old, and TiKV's is still on its way."""
    monkeypatch.setattr(
        "pyspark_tidb_binlog.binlog_source.cluster.status_port.StatusPorts.ask",
        lambda ports, start_ts, key: Verdict(TransactionState.ABSENT),
    )
    service.store.write([fake(START + tso(1_200_000))])
    service.store.catch_up()
    running = iter(Reading("c", ms) for ms in (5000, 6000, 604_999, 605_000, 605_001))
    resolver = OrphanResolver(
        service, lambda: ("h:1",), lambda: 2_200_000, safe_point=lambda ports: START - 1, running=lambda: next(running)
    )
    for _ in range(4):
        resolver()
        service.store.catch_up()
        assert service.store.orphans(1 << 62)
    resolver()
    service.store.catch_up()
    assert not service.store.orphans(1 << 62), "now it was seen to wait for ten minutes"


def test_only_what_the_upstream_answered_counts(service, monkeypatch):
    """Ten minutes in which no port answers prove nothing, nor do those in which the transaction was locked."""
    lost = PumpUnavailable("no status port answers")
    absent = Verdict(TransactionState.ABSENT)
    answers = [lost, absent, lost, absent, Verdict(TransactionState.ALIVE), absent, absent, absent]
    told = iter(answers)

    def ask(ports, start_ts, key):
        answer = next(told)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("pyspark_tidb_binlog.binlog_source.cluster.status_port.StatusPorts.ask", ask)
    running = iter(
        [*(Reading("c", ms) for ms in range(0, 601_000 * 6, 601_000)), Reading("c", 601_000 * 6 - 2000), Reading("c", 601_000 * 6)]
    )
    resolver = OrphanResolver(
        service, lambda: ("h:1",), lambda: 1_601_000, safe_point=lambda ports: START - 1, running=lambda: next(running)
    )
    for _ in answers[:-1]:
        resolver()
        service.store.catch_up()
        assert service.store.orphans(1 << 62)
    resolver()
    service.store.catch_up()
    assert not service.store.orphans(1 << 62)


def test_absence_that_proves_nothing_writes_nothing_and_names_the_command(service, monkeypatch, caplog):
    resolver = resolved(service, monkeypatch, Verdict(TransactionState.ABSENT), START)
    with caplog.at_level(logging.ERROR):
        resolver()
        resolver()
    end = service.store.state.at
    assert service.store.catch_up().at == end and service.store.orphans(1 << 62)
    assert len(caplog.records) == 1, "said once in a while"
    assert f"pump settle http://p:8250 {START} commit COMMIT_TS" in caplog.text
    assert [(w["start_ts"], bool(w["undecided"])) for w in resolver.waiting()] == [(START, True)]


def test_absence_that_proves_a_rollback_writes_it(service, monkeypatch):
    resolved(service, monkeypatch, Verdict(TransactionState.ABSENT), START - 1)()
    service.store.catch_up()
    assert not service.store.orphans(1 << 62)


def test_a_person_settles_what_waits(service):
    assert settle(service.store, START, START + 7, lambda: START + 7) == f"start_ts {START} is committed at {START + 7}"
    assert service.store.catch_up().sorted_promise == START + 7
    with pytest.raises(ConfigError, match="no Prewrite of start_ts"):
        settle(service.store, START, 0, lambda: 0)


@pytest.mark.parametrize("commit_ts", [START, 5, START + 8, START * 10])
def test_a_person_cannot_say_what_cannot_be(service, commit_ts):
    with pytest.raises(ConfigError, match=f"cannot have committed at {commit_ts}"):
        settle(service.store, START, commit_ts, lambda: START + 7)
    assert service.store.orphans(1 << 62)


def test_without_a_registry_the_clock_and_the_log_bound_what_a_person_says(service):
    bound = near_present(service.store)
    assert abs(bound - tso(time.time_ns() // 1_000_000 + 60_000)) < tso(60_000)
    service.store.write([fake(bound)])
    assert near_present(service.store) == bound + tso(60_000)


def test_a_prewrite_is_settled_once_however_many_do_so_at_the_same_time(service, monkeypatch):
    """Two persons, one of whom errs, and the resolver: each finds the Prewrite waiting, and asks for the present or the upstream."""
    all_have_looked, durable = threading.Barrier(3), service.store.write

    def write(records):
        # as on a disk that takes its time: whoever waits for its turn has looked before
        with contextlib.suppress(threading.BrokenBarrierError):
            all_have_looked.wait(0.3)
        durable(records)

    monkeypatch.setattr(service.store, "write", write)
    monkeypatch.setattr(
        "pyspark_tidb_binlog.binlog_source.cluster.status_port.StatusPorts.ask",
        lambda ports, start_ts, key: Verdict(TransactionState.COMMITTED, START + 5),
    )
    done = []

    def by_hand(commit_ts):
        with contextlib.suppress(ConfigError):
            done.append(settle(service.store, START, commit_ts, lambda: START + 1000))

    resolver = OrphanResolver(service, lambda: ("h:1",), now_ms=lambda: 1_002_000)
    threads = [threading.Thread(target=by_hand, args=(START + n,)) for n in (6, 7)] + [threading.Thread(target=resolver)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    service.store.catch_up()
    commits = [ts for n in (5, 6, 7) for ts in (START + n,) if service.store.entry(ts) is not None]
    assert len(commits) == 1 and len(done) <= 1
