"""Bytes of the value log that were flipped: no delivery passes them in silence, be the index there or lost."""

import contextlib
import functools
import gzip
import shutil
from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.pump.storage.format import BEGINNING, HEADER, Pointer, decode_footer, split_records
from pyspark_tidb_binlog.binlog_source.pump.storage.record import RecordKind, fake, read
from pyspark_tidb_binlog.binlog_source.pump.storage.store import Store, StoreSettings
from pyspark_tidb_binlog.binlog_source.wire.damage import damage_in
from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.schemas.errors import BinlogPurged, DamagedLog
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.proto import pump_pb2
from tests.support.fakes.faulty_files import flip
from tests.support.store_model import commit, drained, prewrite, pulled, raw, undisturbed

GOLDEN = Path(__file__).parents[2] / "golden" / "pump_dir"
WRITTEN = [prewrite(5), commit(5, 9), fake(10), prewrite(11), commit(11, 14), prewrite(15), commit(15, 19), fake(25), fake(27)]
LOST_P, LOST_C, LAST = 3, 4, 8


def opened(path):
    return contextlib.closing(Store(path, StoreSettings(sync=False)))


def place(number):
    return sum(HEADER.size + len(record.payload) for record in WRITTEN[:number])


@pytest.fixture
def log(tmp_path):
    with opened(tmp_path) as store:
        store.write(WRITTEN)
    return tmp_path / "value" / "000000.vlog"


def damage_of(pull):
    """What is delivered is not looked at: a pull that ends with an error gives up what came before with it."""
    with pytest.raises(DamagedLog) as error:
        pull()
    damage = damage_in(str(error.value))
    assert damage is not None and "Pump p: value log 000000.vlog" in str(error.value)
    return damage


def commit_ts(entities):
    return [entity.meta.commitTs for entity in entities]


@pytest.mark.parametrize("hit", [0, 5, HEADER.size + 3])
@pytest.mark.parametrize("number", [LOST_P, LOST_C])
def test_a_record_that_went_bad_after_it_was_indexed_is_named_with_its_commit_ts(tmp_path, log, number, hit):
    with opened(tmp_path) as store:
        flip(log, place(number) + hit)
        damage = damage_of(lambda: pulled(store))
        assert (damage.begin, damage.upto_ts, damage.exact) == (place(number), 14, True)
        assert damage_of(lambda: pulled(store, 10)) == damage
        assert commit_ts(pulled(store, damage.upto_ts)) == [19, 25, 27], "a reader that may lose goes on behind it"
        hole = damage_of(lambda: raw(store))
        assert (hole.begin, hole.end) == (place(number), place(number + 1))
        assert hole.after_ts < 14 <= hole.upto_ts
        assert commit_ts(raw(store, Pointer(0, hole.end)))[-2:] == [27, 27]


@pytest.mark.parametrize("number", [LOST_P, LOST_C])
def test_a_record_that_went_bad_before_it_was_indexed_is_told_by_its_span(tmp_path, log, number):
    flip(log, place(number) + 20)
    shutil.rmtree(tmp_path / "index")
    with opened(tmp_path) as store:
        hole = damage_of(lambda: pulled(store))
        assert (hole.begin, hole.end) == (place(number), place(number + 1))
        assert hole.after_ts < 14 <= hole.upto_ts
        # a Prewrite whose Commit is lost waits for the orphan resolver
        assert commit_ts(pulled(store, hole.upto_ts)) == ([19, 25, 27] if number == LOST_P else [])
        assert damage_of(lambda: raw(store)) == hole
    with opened(tmp_path) as store:
        assert damage_of(lambda: pulled(store)) == hole, "it is remembered"


def test_a_commit_whose_prewrite_may_be_lost_is_not_taken_for_another_pumps(tmp_path, log):
    flip(log, place(LOST_P) + 20)
    shutil.rmtree(tmp_path / "index")
    with opened(tmp_path) as store:
        hole = damage_of(lambda: pulled(store))
        lost = damage_of(lambda: drained(store, lambda service, stop: service.pull_sorted(0, stop, undisturbed(), {hole.place})))
        assert (lost.upto_ts, lost.exact) == (14, True)
        behind = drained(store, lambda service, stop: service.pull_sorted(lost.upto_ts, stop, undisturbed(), {hole.place}))
        assert commit_ts(behind) == [19, 25, 27]


def test_prewrite_and_commit_lost_together_are_told(tmp_path, log):
    flip(log, place(LOST_P) + 20)
    flip(log, place(LOST_C) + 20)
    shutil.rmtree(tmp_path / "index")
    with opened(tmp_path) as store:
        hole = damage_of(lambda: pulled(store))
        assert (hole.begin, hole.end, hole.after_ts, hole.upto_ts) == (place(LOST_P), place(LOST_C + 1), 10, 18)
        behind = drained(store, lambda service, stop: service.pull_sorted(0, stop, undisturbed(), {hole.place}))
        assert commit_ts(behind) == [9, 10, 19, 25, 27]


def test_an_acknowledged_record_at_the_end_is_not_taken_for_a_torn_one(tmp_path, log):
    flip(log, place(LAST) + 20)
    size = log.stat().st_size
    with opened(tmp_path) as store:
        assert log.stat().st_size == size, "the evidence stays"
        assert damage_of(lambda: pulled(store)).begin == place(LAST)
        assert damage_of(lambda: raw(store)).begin == place(LAST)
    shutil.rmtree(tmp_path / "index")
    with opened(tmp_path) as store:
        assert damage_of(lambda: raw(store)).begin == place(LAST)
        assert damage_of(
            lambda: drained(store, lambda service, stop: service.pull_raw(Pointer(0, place(LAST)), stop, undisturbed()))
        ).begin == place(LAST)
        store.write([fake(40), fake(50)])
        assert damage_of(lambda: pulled(store)).begin == place(LAST)


def test_fakes_that_drainers_fetched_before_the_damage_do_not_bound_it(tmp_path):
    """Two Drainers fetch 100 and 101, then a transaction commits at 110, and only then their fakes are written: in any order."""
    records = [prewrite(90), commit(90, 110), fake(101), fake(100), fake(112)]
    with opened(tmp_path) as store:
        store.write(records)
    length = HEADER.size + len(records[0].payload)
    flip(tmp_path / "value" / "000000.vlog", 20)
    flip(tmp_path / "value" / "000000.vlog", length + 20)
    shutil.rmtree(tmp_path / "index")
    with opened(tmp_path) as store:
        store.catch_up()
        (damage,) = store.damages()
        assert (damage.begin, damage.upto_ts) == (0, 0), "not known yet"
        store.write([fake(99 + tso(60_000)), fake(100 + tso(60_000))])
        store.catch_up()
        (damage,) = store.damages()
        assert damage.upto_ts == 99 + tso(60_000), "fetched when everything that was older had long been written"


def test_a_log_that_is_shorter_than_what_was_acknowledged_is_told(tmp_path, log):
    log.write_bytes(log.read_bytes()[: place(LOST_C)])
    with opened(tmp_path) as store:
        store.write([commit(11, 13), prewrite(30), commit(30, 33)])
        damage = damage_of(lambda: pulled(store))
        assert (damage.begin, damage.end, damage.upto_ts) == (place(LOST_C), place(LOST_C), 32)
        assert damage_of(lambda: raw(store)) == damage
        assert commit_ts(drained(store, lambda service, stop: service.pull_sorted(0, stop, undisturbed(), {damage.place}))) == [
            9,
            10,
            13,
            33,
        ]
        assert len(drained(store, lambda service, stop: service.pull_raw(BEGINNING, stop, undisturbed(), {damage.place}))) == 8


def test_readers_from_behind_are_not_bothered(tmp_path, log):
    flip(log, place(LOST_P) + 20)
    shutil.rmtree(tmp_path / "index")
    with opened(tmp_path) as store:
        assert commit_ts(pulled(store, 18)) == [19, 25, 27]
        assert drained(store, lambda service, stop: service.pull_tip(18, stop))


def test_a_tip_does_not_promise_past_it_in_silence(tmp_path, log):
    flip(log, place(LOST_P) + 20)
    shutil.rmtree(tmp_path / "index")
    with opened(tmp_path) as store:
        hole = damage_of(lambda: drained(store, lambda service, stop: service.pull_tip(13, stop)))
        base = drained(store, lambda service, stop: service.pull_tip(13, stop, {hole.place}))[0]
        assert Pointer(base.pos.suffix, base.pos.offset) <= Pointer(0, hole.begin), "a raw pull from there meets the damage"


def test_collected_damage_is_forgotten(tmp_path):
    with contextlib.closing(Store(tmp_path, StoreSettings(max_file_size=1, sync=False))) as store:
        for record in WRITTEN:
            store.write([record])
    flip(tmp_path / "value" / f"{LOST_P:06d}.vlog", 20)
    shutil.rmtree(tmp_path / "index")
    with contextlib.closing(Store(tmp_path, StoreSettings(max_file_size=1, sync=False))) as store:
        assert len(store.damages()) == 1
        assert store.collect(26, 0)
        assert store.damages() == []
    with contextlib.closing(Store(tmp_path, StoreSettings(max_file_size=1, sync=False))) as store:
        assert store.damages() == []


def test_a_collected_file_is_no_damage(tmp_path):
    with contextlib.closing(Store(tmp_path, StoreSettings(max_file_size=1, sync=False))) as store:
        for record in WRITTEN:
            store.write([record])
        store.catch_up()
        entry = store.entry(9)
        store.collect(26, 0)
        with pytest.raises(BinlogPurged):
            store.payload(entry)


@pytest.mark.parametrize("kind", [RecordKind.PREWRITE, RecordKind.COMMIT])
@pytest.mark.parametrize("which", [0, 0.5, -1])
def test_the_directory_of_a_real_pump(tmp_path, kind, which):
    """Every flip in it, and a flip of its last record: told, in both deliveries, and what is lost lies in the span."""
    (tmp_path / "value").mkdir()
    log = tmp_path / "value" / "000000.vlog"
    data = gzip.decompress((GOLDEN / "000000.vlog.gz").read_bytes())
    log.write_bytes(data)
    with opened(tmp_path) as store:
        whole = commit_ts(pulled(store))
    end = len(data) - 12 if decode_footer(data[-12:]) else len(data)
    split = split_records(data[:end], end)
    records = [(at, read(payload)) for at, payload in zip(split.offsets, split.payloads, strict=True)]
    hit = [(at, record) for at, record in records if record.kind is kind]
    at, record = hit[int(which * len(hit)) if which >= 0 else -1]
    shutil.rmtree(tmp_path / "index")
    log.write_bytes(data)
    flip(log, at + HEADER.size + 1)
    outcomes = {r.start_ts: r.commit_ts for _, r in records if r.kind is RecordKind.COMMIT}
    with opened(tmp_path) as store:
        hole = damage_of(lambda: raw(store))
        assert hole.begin == at
        lost = outcomes.get(record.start_ts)
        assert lost is None or (hole.after_ts < lost and (not hole.upto_ts or lost <= hole.upto_ts or kind is RecordKind.PREWRITE))
        if whole[-1] <= hole.after_ts or store.state.sorted_promise <= hole.after_ts:
            return
        assert damage_of(lambda: pulled(store)).begin == at


A_FEW = StoreSettings(max_file_size=400, sync=False, span=200)


def many_files(path, gc_ts=0):
    """Thirty transactions, a few in each of some files; the commit_ts in each file."""
    held = {}
    with contextlib.closing(Store(path, A_FEW)) as store:
        for n in range(1, 31):
            store.write([prewrite(n * 10), commit(n * 10, n * 10 + 5)])
        store.catch_up()
        for entry in store.span(0, 1 << 60, 1 << 10).delivered:
            held.setdefault(entry.at.file_id, []).append(entry.ts)
        if gc_ts:
            assert store.collect(gc_ts, 0)
    return held


def file_of(path, number):
    return path / "value" / f"{number:06d}.vlog"


def sorted_on(store, after=0):
    """The commit_ts that a sorted reader gets which goes on behind each damage, and the damages."""
    got, told = [], []
    while True:
        groups, last, known = (
            [],
            max([after, *got, *(damage.upto_ts for damage in told if damage.exact)]),
            {damage.place for damage in told},
        )
        try:
            drained(store, functools.partial(_kept_pull, groups, last, known))
        except DamagedLog as error:
            damage = damage_in(str(error))
            assert damage not in told and len(told) < 20
            told.append(damage)
            got += commits_of(groups)
            continue
        return got + commits_of(groups), told


def _kept_pull(groups, last, known, service, stop):
    return keeping(groups, service.pull_sorted(last, stop, undisturbed(), known))


def keeping(groups, pull):
    for group in pull:
        groups.append(group)
        yield group


def commits_of(groups):
    return [pump_pb2.PullBinlogResp.FromString(message).entity.meta.commitTs for group in groups for message in group]


@pytest.mark.parametrize("what", ["removed", "emptied", "cut"])
@pytest.mark.parametrize("after_gc", [0, 25])
def test_a_file_that_is_missing_or_shorter_is_told(tmp_path, what, after_gc):
    held = many_files(tmp_path, after_gc)
    number = sorted(held)[len(held) // 2]
    log = file_of(tmp_path, number)
    if what == "removed":
        log.unlink()
    else:
        log.write_bytes(b"" if what == "emptied" else log.read_bytes()[: log.stat().st_size // 2])
    for _ in range(2):
        with contextlib.closing(Store(tmp_path, A_FEW)) as store:
            told = damage_of_any(lambda: raw(store))
            assert told.file_id == number and told.after_ts < held[number][-1] <= told.upto_ts
            assert damage_of_any(lambda: pulled(store, after_gc)).file_id == number
            assert damage_of_any(lambda: drained(store, lambda service, stop: service.pull_tip(after_gc + 1, stop))).file_id == number
            got, places = sorted_on(store, after_gc)
            wanted = {ts for there in held.values() for ts in there if ts > after_gc}
            lost = wanted - set(got)
            assert lost and all(any(p.after_ts < ts <= p.upto_ts for p in places) for ts in lost), "each lost one is told"
            assert all(set(there) <= set(got) | {p.upto_ts for p in places} for n, there in held.items() if n != number and n > min(held))


def damage_of_any(pull):
    with pytest.raises(DamagedLog) as error:
        pull()
    return damage_in(str(error.value))


def test_the_oldest_file_is_missing_that_no_collection_removed(tmp_path):
    held = many_files(tmp_path, 1)
    file_of(tmp_path, 0).unlink()
    for _ in range(2):
        with contextlib.closing(Store(tmp_path, A_FEW)) as store:
            told = damage_of_any(lambda: raw(store))
            assert (told.file_id, told.begin) == (0, 0) and held[0][-1] <= told.upto_ts
            assert damage_of_any(lambda: drained(store, lambda service, stop: service.pull_tip(2, stop))) == told
            got, places = sorted_on(store, 2)
            lost = {ts for there in held.values() for ts in there} - set(got)
            assert lost >= set(held[0]) and all(any(p.after_ts < ts <= p.upto_ts for p in places) for ts in lost)
            assert pulled(store, told.upto_ts), "a reader from behind is not bothered"


def test_a_missing_file_is_forgotten_once_what_followed_it_is_collected(tmp_path):
    held = many_files(tmp_path)
    number = sorted(held)[1]
    file_of(tmp_path, number).unlink()
    with contextlib.closing(Store(tmp_path, A_FEW)) as store:
        assert store.collect(held[number][-1], 0) and len(store.damages()) == 1, "it may have held more than the collected"
    with contextlib.closing(Store(tmp_path, A_FEW)) as store:
        assert len(store.damages()) == 1
        assert store.collect(held[number + 2][-1], 0) and store.damages() == []
    with contextlib.closing(Store(tmp_path, A_FEW)) as store:
        assert store.damages() == []


def test_an_index_that_is_rebuilt_keeps_what_the_log_lacks(tmp_path):
    """A file between others is gone, and the end of the log as well: the index is rebuilt, from which nothing shows the first."""
    held = many_files(tmp_path)
    number, last = sorted(held)[1], max(int(path.stem) for path in (tmp_path / "value").iterdir())
    file_of(tmp_path, number).unlink()
    file_of(tmp_path, last).unlink()
    for _ in range(2):
        with contextlib.closing(Store(tmp_path, A_FEW)) as store:
            assert [damage.file_id for damage in store.damages()] == [number, last]


def test_files_that_a_real_pump_collected_between_others_are_no_damage(tmp_path):
    """It removes whichever are old enough, and this Pump's index never saw them."""
    held = many_files(tmp_path)
    file_of(tmp_path, sorted(held)[1]).unlink()
    shutil.rmtree(tmp_path / "index")
    for _ in range(2):
        with contextlib.closing(Store(tmp_path, A_FEW)) as store:
            assert store.damages() == []


@pytest.mark.parametrize("point", ["gc-noted", "vlog-before-drop", "vlog-dropped", "gc-keys"])
def test_a_collection_that_died_leaves_no_damage(tmp_path, monkeypatch, point):
    class Dead(Exception):
        pass

    def die(name):
        if name == point:
            raise Dead

    many_files(tmp_path)
    with contextlib.closing(Store(tmp_path, A_FEW)) as store:
        with monkeypatch.context() as patch, pytest.raises(Dead):
            patch.setattr(failpoints, "point", die)
            store.collect(205, 0)
    with contextlib.closing(Store(tmp_path, A_FEW)) as store:
        assert store.damages() == []
