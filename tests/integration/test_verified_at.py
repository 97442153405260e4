"""What the Delta table ``verification`` says of tables, as the doctor and the page show it; and what a run prints."""

import datetime
from pathlib import Path

import pytest

from pyspark_tidb_binlog.schemas.errors import NotUsableYet
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.verify import verification_table
from pyspark_tidb_binlog.sinks.verify.table_comparison import Tally
from pyspark_tidb_binlog.sinks.verify.verification import VerifiedTable
from pyspark_tidb_binlog.sinks.verify.verification_table import ALL, VerificationTable, verified_at


class Runs:
    """Runs of one target, a second after each other."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.uri, self.now = str(place / "v"), datetime.datetime(2024, 5, 6, tzinfo=datetime.UTC)
        monkeypatch.setattr(verification_table, "_now", self._tick)

    def _tick(self) -> datetime.datetime:
        self.now += datetime.timedelta(seconds=1)
        return self.now

    def run(self, compares: str, found: dict[str, int], *, ends: bool = True) -> None:
        """``found``: by table, how many rows differ."""
        record = VerificationTable(self.uri, 3600.0, Flavour.MARIADB, f"{compares} of a:1")
        record.begin(afresh=True)
        for name, differing in found.items():
            record.note_table(VerifiedTable(name, 7, (), Tally(rows=10, unlisted=differing)), [])
        record.end() if ends else record.flush()
        assert not record.trouble


def test_the_newest_comparison_of_each_table_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(tmp_path, monkeypatch)
    assert verified_at(runs.uri) is None
    runs.run(ALL, {"d.gone": 4, "d.a": 2, "d.b": 0})
    found = verified_at(runs.uri)
    assert found is not None and (found.tables, found.rows, found.differing) == (3, 6, ("d.a", "d.gone"))
    runs.run("d.a", {"d.a": 0})
    found = verified_at(runs.uri)
    assert found is not None and (found.rows, found.differing) == (4, ("d.gone",))
    oldest = found.oldest
    runs.run(ALL, {"d.a": 1}, ends=False)
    found = verified_at(runs.uri)
    assert found is not None and (found.tables, found.differing) == (3, ("d.a", "d.gone")), (
        "a run that has not ended may still come to a table"
    )
    assert found.oldest == oldest
    runs.run(ALL, {"d.a": 0, "d.b": 0})
    found = verified_at(runs.uri)
    assert found is not None and (found.tables, found.rows, found.differing) == (2, 0, ()) and found.oldest > oldest


def test_what_a_run_finds_counts_although_a_later_one_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(tmp_path, monkeypatch)
    slow = VerificationTable(runs.uri, 3600.0, Flavour.MARIADB, "d.a of a:1")
    slow.begin(afresh=True)
    runs.run(ALL, {"d.a": 0, "d.b": 0})
    slow.note_table(VerifiedTable("d.a", 7, (), Tally(rows=10, unlisted=3)), [])
    slow.flush()
    found = verified_at(runs.uri)
    assert found is not None and (found.tables, found.differing) == (2, ("d.a",))


def test_a_table_that_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(tmp_path, monkeypatch)
    runs.run(ALL, {"d.a": 0})
    for file in Path(runs.uri).glob("*.parquet"):
        file.write_bytes(b"")
    with pytest.raises(NotUsableYet, match="v cannot be read"):
        verified_at(runs.uri)
