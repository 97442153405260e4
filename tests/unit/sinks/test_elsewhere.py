"""Which of two checkpoints counts, a savepoint in a directory, and the order of the two writes; no server."""

import dataclasses
from collections.abc import Collection
from pathlib import Path

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig, CheckpointConfig, DrainerConfig, SecurityConfig, TargetConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError, CheckpointMoved, ConfigError
from pyspark_tidb_binlog.sinks.mysql import elsewhere
from pyspark_tidb_binlog.sinks.mysql.checkpoint_row import Checkpoint
from pyspark_tidb_binlog.sinks.mysql.elsewhere import InFile, OnServer, Trailing, choose, is_elsewhere, real_checkpoint

TARGET = TargetConfig(host="db", port=33, user="u", password="p")


def at(commit_ts: int, *named: int, consistent: bool = False) -> Checkpoint:
    return Checkpoint(commit_ts, consistent, 5, None, named)


@pytest.mark.shows(
    "syncer.to.checkpoint.type",
    "syncer.to.checkpoint.host",
    "syncer.to.checkpoint.port",
    "syncer.to.checkpoint.user",
    "syncer.to.checkpoint.password",
)
@pytest.mark.parametrize(
    ("asked", "separate"),
    [
        (CheckpointConfig(), False),
        (CheckpointConfig(host="other"), False),  # without type it means nothing, as in the original
        (CheckpointConfig(type="mysql", table="t"), False),
        (CheckpointConfig(type="tidb", host="db", port=33, user="u", password="p"), False),
        (CheckpointConfig(type="mysql", host="other"), True),
        (CheckpointConfig(type="mysql", port=34), True),
        (CheckpointConfig(type="mysql", user="v"), True),
        (CheckpointConfig(type="mysql", security=SecurityConfig(ssl_ca="/ca.pem")), True),
        (CheckpointConfig(type="file"), True),
    ],
)
def test_where_the_checkpoint_is(asked: CheckpointConfig, separate: bool, tmp_path: Path) -> None:
    config = DrainerConfig(target=TARGET, checkpoint=asked, data_dir=str(tmp_path))
    assert is_elsewhere(config) is separate
    if separate:
        made = real_checkpoint(config, 7)
        assert isinstance(made, InFile if asked.type == "file" else OnServer)


def test_what_counts_at_the_start() -> None:
    assert choose(None, None, "x", "target-1").checkpoint is None
    assert choose(None, at(5), "x", "target-1").checkpoint == at(5)
    trailing = choose(at(9, 5, 7), at(5), "x", "target-1")
    assert (
        trailing.ours
        and not trailing.words
        and choose(at(9, 5, 7), at(7), "x", "target-1").ours
        and choose(at(9, 5), at(9), "x", "target-1").ours
    )
    gone = choose(at(9, 5), None, "x", "target-1")
    assert gone.ours and gone.checkpoint == at(9, 5) and "written again" in gone.words
    ahead = choose(at(9, 5), at(12), "x", "target-1")
    assert not ahead.ours and ahead.checkpoint == at(12) and not ahead.upto_ts and "went on" in ahead.words
    back = choose(at(9, 5), at(6), "x", "target-1")
    assert not back.ours and back.checkpoint == at(6) and back.upto_ts == 9 and "set it back" in back.words


def test_one_that_we_wrote_for_a_target_that_was_later_is_never_taken_for_another_drainers() -> None:
    """The target was restored, rebuilt or lost its last commits: what it lacks would be left out."""
    written = dataclasses.replace(at(12), written_for="target-1")
    for ours in (None, at(9, 5), at(5)):
        with pytest.raises(
            ConfigError, match=r"at 12 .* for the target target-1.*restored from a backup.*\(1\).*remove the checkpoint.*\(2\)"
        ):
            choose(ours, written, "x", "target-1")
    assert choose(at(9, 5, 12), written, "x", "target-1").ours and choose(at(12), written, "x", "target-1").ours


def test_one_of_ours_below_our_record_is_late_or_restored_and_one_that_somebody_wrote_is_meant() -> None:
    written = dataclasses.replace(at(12), written_for="target-1")
    late = choose(at(15), written, "x", "target-1")
    assert late.ours and not late.upto_ts and "To go back, change the checkpoint's commitTS" in late.words
    for meant in (at(12), dataclasses.replace(written, written_for="target-2")):
        back = choose(at(15), meant, "x", "target-1")
        assert not back.ours and back.checkpoint == meant and back.upto_ts == 15


@pytest.mark.parametrize("edited", [False, True])
def test_whether_we_wrote_it_is_said_with_the_very_commit_ts(edited: bool, tmp_path: Path) -> None:
    real = InFile(tmp_path)
    real.open()
    written = dataclasses.replace(at(12), written_for="target-1")
    real.write(written, ())
    row = written.to_json()
    if edited:
        path = tmp_path / "savepoint"
        path.write_text(path.read_text().replace("commitTS = 12", "commitTS = 13"))
        row = row.replace('"commitTS":12,', '"commitTS":13,', 1)
    in_file, in_row = real.read(), Checkpoint.from_json(row)
    real.close()
    assert in_file is not None and in_file.written_for == in_row.written_for == ("" if edited else "target-1")
    assert in_file.commit_ts == in_row.commit_ts == (13 if edited else 12)


def test_a_savepoint_is_a_real_drainers_both_ways(tmp_path: Path) -> None:
    real = InFile(tmp_path / "data")
    real.open()
    assert real.read() is None
    real.write(at(7), ())
    path = tmp_path / "data" / "savepoint"
    assert path.read_text() == "consistent = false\ncommitTS = 7\nschema-version = 5\n"
    path.write_text('commitTS = 470604628714323969\nconsistent = true\nschema-version = 48\nts-map = "x"\n')
    assert real.read() == Checkpoint(470604628714323969, True, 48)
    path.write_text("")
    assert real.read() is None
    for broken in ("commitTS = ", "\x00\x01", 'commitTS = "7"\n'):
        path.write_text(broken)
        with pytest.raises(ApplyError, match="is not a Drainer's savepoint"):
            real.read()
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ApplyError, match="is not a Drainer's savepoint"):
        real.read()


def test_a_savepoint_that_was_edited_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    real = InFile(tmp_path)
    real.open()
    real.write(at(7), ())
    (tmp_path / "savepoint").write_text("commitTS = 3\n")
    with pytest.raises(CheckpointMoved, match="was changed to 3"):
        real.write(at(8), (7, 8))
    assert (tmp_path / "savepoint").read_text() == "commitTS = 3\n"


def test_a_savepoint_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "savepoint"
    path.mkdir()  # root, who runs tests, may read every file, but no directory as one
    with pytest.raises(ApplyError, match=f"{path} cannot be read"):
        InFile(tmp_path).read()


class Remembered:
    """Stands for the server of the checkpoint."""

    where = "far away"

    def __init__(self) -> None:
        self.there: Checkpoint | None = None
        self.away = False
        self.writes: list[int] = []

    def open(self) -> None: ...

    def read(self) -> Checkpoint | None:
        return self.there

    def write(self, checkpoint: Checkpoint, expected: Collection[int]) -> None:
        assert self.there is None or self.there.commit_ts in expected
        if self.away:
            raise ApplyError("it is away")
        self.there = checkpoint
        self.writes.append(checkpoint.commit_ts)

    def close(self) -> None: ...


def test_our_record_names_what_is_written_before_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(elsewhere.time, "monotonic", lambda: now[0])
    real = Remembered()
    trailing = Trailing(real)
    trailing.begin(None, ())
    assert trailing.named(10) == (10,)
    assert real.writes == []
    trailing.follow(at(10))
    assert real.writes == [10] and trailing.named(11) == (10,)
    trailing.follow(at(11))
    assert real.writes == [10], "not before three seconds are over"
    now[0] += 3
    assert trailing.named(12) == (10, 12)
    assert trailing.named(13) == (10, 13), "a transaction that was rolled back announced nothing"
    trailing.follow(at(13))
    assert real.writes == [10, 13]


def test_a_life_that_was_stopped_between_the_two_writes_and_is_woken_later_stops_nobody() -> None:
    """The lease does not hold for another server."""
    real = Remembered()
    real.there = at(1000)
    stopped, next_one = Trailing(real), Trailing(real)
    stopped.begin(at(1000), (1000,))
    ours = at(2000, *stopped.named(2000, now=True))
    next_one.begin(at(1000), (*ours.elsewhere, ours.commit_ts))
    ours = at(3000, *next_one.named(3000, now=True))
    stopped.follow(at(2000))
    assert choose(ours, real.there, "x", "target-1").ours, "killed here"
    next_one.follow(at(3000))
    assert real.writes == [2000, 3000] and next_one.named(3001) == (3000,)


def test_a_server_that_is_away_does_not_hold_the_data_up(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    monkeypatch.setattr(elsewhere.time, "monotonic", lambda: now[0])
    real = Remembered()
    trailing = Trailing(real)
    trailing.begin(at(5), ())
    real.there, real.away = at(5), True
    for ts in range(10, 60, 10):
        assert trailing.named(ts) == (5, 10), "whether 10 was written is not known"
        trailing.follow(at(ts))
        now[0] += 1
    assert 1 <= caplog.text.count("cannot be written") <= 3
    real.away = False
    now[0] += 60
    trailing.follow(at(60))
    assert real.writes == [10]
    now[0] += 3
    assert trailing.named(70) == (10, 70)
    trailing.follow(at(70))
    assert real.writes == [10, 70]


@pytest.mark.shows("syncer.to.checkpoint.password")
def test_the_settings_of_a_separate_checkpoint_are_checked() -> None:
    with pytest.raises(ValueError, match="syncer.to.checkpoint.type: 'redis' is not"):
        CheckpointConfig(type="redis")
    with pytest.raises(ValueError, match="the checkpoint is a file"):
        DrainerConfig(apply=ApplyConfig(db_type="kafka"), checkpoint=CheckpointConfig(type="mysql"))
