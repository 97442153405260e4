"""Files of binlogs: the records of wire.md 3, names, rotation, torn tails, what is collected, and who may write."""

import datetime
import io
import os
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from pyspark_tidb_binlog.schemas.binlogfile import (
    AROUND,
    BinlogName,
    BinlogWriter,
    FilePosition,
    TornRecord,
    collectable,
    file_name,
    in_order,
    read_file_name,
    read_records,
    record_of,
    records_in,
    require_whole,
    walk,
    whole_until,
)
from pyspark_tidb_binlog.schemas.errors import ApplyError, Corruption, LeaseHeld

MOMENT = datetime.datetime(2018, 10, 10, 10, 10, 10)  # noqa: DTZ001 - names are in local time
DDL = "080110808090daf68cfbc306222a7573652060737065635f61603b20435245415445205441424c4520607460202860616020494e54293b3b"
DML = (
    "0800108180f0dff68cfbc3061a3b0a390a06737065635f61120161180022130a0269641201081a06626967696e742202080e22150a017312010f1a07"
    "7661726368617222040204" + "6869"
)


def writer(directory: Path, max_bytes: int = 100, **more: FilePosition) -> BinlogWriter:
    return BinlogWriter(directory, max_bytes, lambda: MOMENT, **more)


def write(directory: Path, payloads: Iterable[bytes], max_bytes: int = 100) -> FilePosition:
    """What was written, by a writer that is gone."""
    one = writer(directory, max_bytes)
    one.append(payloads)
    one.sync()
    one.close()
    return one.position


def held(directory: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(directory.glob("binlog-*"))}


def payloads(directory: Path) -> list[bytes]:
    return [r.payload for r in walk(directory)]


@pytest.mark.shows("wire gotcha 6")
def test_records_of_the_specification() -> None:
    assert record_of(bytes.fromhex(DDL)).hex() == "04051b1c3800000000000000" + DDL + "7253f06e"
    assert record_of(bytes.fromhex(DML)).hex() == "04051b1c4900000000000000" + DML + "a1c839b5"
    data = record_of(bytes.fromhex(DDL)) + record_of(b"") + record_of(bytes.fromhex(DML))
    assert list(records_in(io.BytesIO(data), len(data), "f")) == [
        (bytes.fromhex(DDL), 72),
        (b"", 88),
        (bytes.fromhex(DML), len(data)),
    ]


def test_every_cut_of_a_record_is_torn_and_every_changed_bit_is_seen() -> None:
    first, whole = record_of(b"one"), record_of(b"binlogtest")
    for size in range(1, len(whole)):
        data = first + whole[:size]
        found = records_in(io.BytesIO(data), len(data), "f")
        assert next(found) == (b"one", len(first))
        with pytest.raises(TornRecord, match=rf"f: .*offset {len(first)}"):
            next(found)
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corruption, match="f: "):
            list(records_in(io.BytesIO(data), len(data), "f"))


def test_names() -> None:
    assert file_name(0, MOMENT) == "binlog-0000000000000000-20181010101010"
    assert read_file_name("binlog-0000000000000001") == BinlogName("binlog-0000000000000001", 1)
    old = "binlog-0000000000000012-20181010101010-407623959013752832.tar.gz"
    assert read_file_name(old) == BinlogName(old, 12, 407623959013752832)
    strange = ("savepoint", "binlog", "binlog-x", "binlog-1-2-3-4", "binlog-1-2-x", "binlog-1-checkpoint", "binlog-1.lock", "xbinlog-1")
    assert [n for n in strange if read_file_name(n)] == []
    assert [n.index for n in in_order(["binlog-0000000000000002-x", ".lock", "binlog-0000000000000001-y", "savepoint"])] == [1, 2]


def test_files_without_a_gap_but_after_the_first() -> None:
    def names(*indexes: int) -> tuple[BinlogName, ...]:
        return tuple(BinlogName(str(i), i) for i in indexes)

    for whole in ((), (0,), (7, 8, 9), (0, 5, 6)):
        require_whole(names(*whole))
    for broken in ((1, 3), (0, 1, 3), (2, 2)):
        with pytest.raises(Corruption, match="files are missing"):
            require_whole(names(*broken))


@pytest.mark.shows("pb files")
def test_a_file_ends_with_the_record_that_fills_it(tmp_path: Path) -> None:
    """Two records of 10 bytes are 52 bytes."""
    assert write(tmp_path, [b"binlogtest"] * 5, max_bytes=52) == FilePosition(2, 26)
    sizes = [len(data) for data in held(tmp_path).values()]
    assert sizes == [52, 52, 26] and list(held(tmp_path)) == [file_name(i, MOMENT) for i in range(3)]
    assert write(tmp_path, [b"binlogtest", b"", b"x" * 500, b"y"], max_bytes=52) == FilePosition(4, AROUND + 1)
    assert payloads(tmp_path) == [b"binlogtest"] * 6 + [b"x" * 500, b"y"]
    ends = [r.end for r in walk(tmp_path, FilePosition(1, 26))]
    assert ends == [FilePosition(1, 52), FilePosition(2, 26), FilePosition(2, 52), FilePosition(3, 516), FilePosition(4, 17)]


def test_how_records_are_handed_over_changes_no_byte(tmp_path: Path) -> None:
    many = [bytes([i]) * (i * 37 % 200) for i in range(200)]
    write(tmp_path / "at once", many, max_bytes=1000)
    for payload in many:
        write(tmp_path / "one by one", [payload], max_bytes=1000)
    assert held(tmp_path / "at once") == held(tmp_path / "one by one")
    assert payloads(tmp_path / "at once") == [m for m in many if m]


def test_a_torn_tail_is_cut_off_and_written_over(tmp_path: Path) -> None:
    for size in range(1, AROUND + 10):
        directory = tmp_path / str(size)
        write(directory, [b"one"])
        with next(directory.glob("binlog-*")).open("ab") as file:
            file.write(record_of(b"binlogtest")[:size])
        assert payloads(directory) == [b"one"] and whole_until(next(directory.glob("binlog-*"))) == 19
        assert write(directory, [b"two"]) == FilePosition(0, 38)
        assert payloads(directory) == [b"one", b"two"]


def test_only_the_last_file_may_be_torn(tmp_path: Path) -> None:
    write(tmp_path, [b"binlogtest"] * 3, max_bytes=52)
    first = next(iter(sorted(tmp_path.glob("binlog-*"))))
    os.truncate(first, 40)
    found = walk(tmp_path)
    assert next(found).payload == b"binlogtest"
    with pytest.raises(TornRecord, match=first.name):
        next(found)


def test_what_is_no_record_is_not_cut_off(tmp_path: Path) -> None:
    write(tmp_path, [b"one"])
    with next(tmp_path.glob("binlog-*")).open("ab") as file:
        file.write(b"garbage that is longer than a head")
    with pytest.raises(Corruption, match="no record begins at offset 19"):
        writer(tmp_path)
    with pytest.raises(Corruption, match="no record begins"):
        payloads(tmp_path)


def test_cut_to_any_place_and_written_again_every_file_is_the_same(tmp_path: Path) -> None:
    many = [bytes([i]) * (1 + i * 37 % 90) for i in range(40)]
    write(tmp_path / "whole", many)
    for count in range(len(many) + 1):
        directory = tmp_path / str(count)
        place = write(directory, many[:count])
        write(directory, many[count:])
        again = writer(directory, cut_to=place)
        assert payloads(directory) == many[:count] and again.position == place
        again.append(many[count:])
        again.cut(place)
        again.append(many[count:])
        again.close()
        assert held(directory) == held(tmp_path / "whole")


def test_a_place_that_is_not_there_is_refused(tmp_path: Path) -> None:
    place = write(tmp_path, [b"one"])
    for wrong in (FilePosition(1, 0), FilePosition(0, place.offset + 1)):
        with pytest.raises(Corruption, match="were files removed"):
            writer(tmp_path, cut_to=wrong)
    assert payloads(tmp_path) == [b"one"]


def test_two_writers_exclude_each_other(tmp_path: Path) -> None:
    one = writer(tmp_path)
    with pytest.raises(LeaseHeld, match=r"\.lock"):
        writer(tmp_path)
    one.close()
    one.close()
    writer(tmp_path).close()
    assert oct(tmp_path.joinpath(".lock").stat().st_mode)[-3:] == "600"


def test_what_may_be_collected(tmp_path: Path) -> None:
    write(tmp_path, [b"binlogtest"] * 7, max_bytes=52)
    one = writer(tmp_path)
    assert [f.index for f in collectable(one.files(), FilePosition(2, 1))] == [0, 1]
    assert [f.index for f in collectable(one.files(), FilePosition(9, 0))] == [0, 1, 2]
    assert one.older_than(60) == ()
    past = time.time() - 120
    for path in tmp_path.glob("binlog-*"):
        os.utime(path, (past, past))
    old = one.older_than(60)
    assert [f.index for f in old] == [0, 1, 2]
    one.collect(old)
    one.append([b"more"])
    one.close()
    assert payloads(tmp_path) == [b"binlogtest", b"more"]
    assert writer(tmp_path).position == FilePosition(3, 26 + 20)


def test_an_empty_directory_holds_nothing(tmp_path: Path) -> None:
    assert payloads(tmp_path / "absent") == []
    assert writer(tmp_path / "new" / "one").position == FilePosition(0, 0)
    assert [list(read_records(p)) for p in (tmp_path / "new" / "one").glob("binlog-*")] == [[]]


@pytest.mark.parametrize("how", ["removed", "replaced", "directory"])
def test_a_file_that_is_not_there_any_more_takes_nothing(how: str, tmp_path: Path) -> None:
    directory = tmp_path / "binlogs"
    one = writer(directory)
    one.append([b"one"])
    one.sync()
    (path,) = directory.glob("binlog-*")
    match how:
        case "removed":
            path.unlink()
        case "replaced":
            copy = path.with_name("copy")
            copy.write_bytes(path.read_bytes())
            copy.replace(path)
        case _:
            directory.rename(tmp_path / "moved")
            directory.mkdir()
    one.sync()
    one.append([b"two"])
    for _ in range(2):
        with pytest.raises(ApplyError, match=rf"{path} was (removed|replaced)"):
            one.sync()
    with pytest.raises(ApplyError, match="Put the file back"):
        one.append([b"x" * 200])  # which would begin the next file
    one.close()


def test_of_the_old_files_those_at_the_beginning_can_go(tmp_path: Path) -> None:
    """One that was copied or touched is young: what follows it stays, or a file would be missing in the middle."""
    write(tmp_path, [b"x" * 100] * 5)
    paths = sorted(tmp_path.glob("binlog-*"))
    one = writer(tmp_path)
    for path in paths:
        os.utime(path, (1, 1))
    assert [f.index for f in one.older_than(60)] == [0, 1, 2, 3, 4]
    os.utime(paths[2])
    assert [f.index for f in one.older_than(60)] == [0, 1]
    one.close()
