"""The Delta table ``verification``: what was verified and when, and each difference that was found. [deltalake]

    kind        a row for
    begin       a run; its words say what it compares
    part        the first rows of a table, which were equal, up to ``key``
    changes     a look at the rows that had changed up to ``commit_ts``: how many there were, and how many differ
    table       a table: whether it differs, how many of its rows are equal, how many differ. ``commit_ts`` is the first S, if there are several
    left out    a table, or a column, that was not compared, or a definition that differs: its words say why
    missing, changed, extra     a row that differs, with both sides
    end         a run that has seen all tables

A run without an end can be continued: tables and first rows that were equal are not read again, whatever differs is.

Promises: one commit holds all rows of a table; commits are ``_EVERY`` seconds apart. What cannot be written waits for the next commit, and ``trouble`` says why. At the end
of a run rows go that are older than the retention, but not the last ones that say that a table was equal.
"""

import datetime
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from pyspark_tidb_binlog.schemas.alarms import Verified
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_string
from pyspark_tidb_binlog.schemas.errors import NotUsableYet
from pyspark_tidb_binlog.sinks.bootstrap.key_ranges import key_from_json, key_to_json
from pyspark_tidb_binlog.sinks.delta.appended_table import FAULTS, AppendedTable, found_at, reason_of
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.verify.repair import RowDifference
from pyspark_tidb_binlog.sinks.verify.verification import Begun, EqualRows, RoundDone, VerifiedTable

SCHEMA = pa.schema(
    [
        pa.field("run", pa.string()),
        pa.field("recorded_at", pa.timestamp("us", tz="UTC")),
        pa.field("kind", pa.string()),
        pa.field("table", pa.string()),
        pa.field("target", pa.string()),
        pa.field("commit_ts", pa.int64()),
        pa.field("differs", pa.bool_()),
        pa.field("rows", pa.int64()),
        pa.field("equal", pa.int64()),
        pa.field("differing", pa.int64()),
        pa.field("key", pa.string()),
        pa.field("columns", pa.list_(pa.string())),
        pa.field("wanted", pa.string()),
        pa.field("found", pa.string()),
        pa.field("sql", pa.list_(pa.string())),
        pa.field("words", pa.string()),
        pa.field("table_id", pa.int64()),
    ]
)
"""Unknown values are null."""
_EVERY = 1.0
ALL = "all tables"
"""Of a run without patterns."""
_AS_OLD = datetime.timedelta(days=1)
"""A run that was begun earlier is not continued."""


_NEWEST = """
SELECT "table", differs, differing, recorded_at FROM (
    SELECT "table", differs, differing, recorded_at, row_number() OVER (PARTITION BY "table" ORDER BY recorded_at DESC) AS place FROM t
    WHERE kind = 'table' AND recorded_at >= COALESCE(
        (SELECT max(b.recorded_at) FROM t AS e JOIN t AS b ON e.run = b.run WHERE e.kind = 'end' AND b.kind = 'begin' AND b.words LIKE '{all} of %'),
        TIMESTAMP '1970-01-01T00:00:00Z')
) WHERE place = 1 ORDER BY "table"
"""
"""The last verification of each table. What the last whole run has not seen is no table any more."""


def verified_at(uri: str) -> Verified | None:
    """What was found last of each table; None: nothing was verified.

    Raises:
        NotUsableYet: the Delta table cannot be read.
    """
    rows = _found(uri, _NEWEST.format(all=ALL))
    if not rows:
        return None
    differing = tuple(row["table"] for row in rows if row["differs"])
    oldest = min(row["recorded_at"] for row in rows).timestamp()
    return Verified(len(rows), sum(row["differing"] or 0 for row in rows), differing, oldest)


def equal_upto(uri: str) -> Mapping[str, int]:
    """By the name of a table at the target, quoted: the newest ts at which it was found to be equal.

    Raises:
        NotUsableYet: the Delta table cannot be read.
    """
    rows = _found(uri, "SELECT target, max(commit_ts) AS ts FROM t WHERE kind = 'table' AND NOT differs AND target <> '' GROUP BY target")
    return {row["target"]: row["ts"] for row in rows}


def _found(uri: str, sql: str) -> list[dict[str, Any]]:
    try:
        return found_at(uri, sql)
    except FAULTS as error:
        raise NotUsableYet(f"the Delta table {uri} cannot be read: {reason_of(error)}") from error


class VerificationTable(AppendedTable):
    """The table, as one run writes it."""

    def __init__(self, uri: str, retention: float, flavour: Flavour, compares: str) -> None:
        """Accesses nothing. ``flavour``: of the target. ``compares``: which tables, and of which target; another run with the same words can be continued."""
        super().__init__(uri, SCHEMA, "verify", retention)
        self._kept = max(datetime.timedelta(seconds=retention), _AS_OLD)
        self._equal = set[str]()
        """Tables that this run has found equal."""
        self._flavour = flavour
        self._compares = compares
        self._run = ""
        self._waiting: list[dict[str, Any]] = []
        self._written_at = 0.0
        self.trouble = ""
        """Why the newest rows are not in the table; empty: they are."""

    def begin(self, *, afresh: bool) -> Begun:
        """Begin a run, or continue the last one if it has no end and was not begun a day ago."""
        begun = Begun() if afresh else self._unfinished()
        self._run = begun.run or _now().isoformat(timespec="microseconds")
        if not begun.run:
            self._write([{"kind": "begin", "words": self._compares}])
        return begun

    def note_part(self, found: RoundDone) -> None:
        """The first rows of a table are equal."""
        if found.equal is None or not found.equal.end:
            return
        key = json.dumps({"columns": list(found.equal.key), "end": key_to_json(found.equal.end)})
        self._write([{"kind": "part", "table": found.name, "commit_ts": found.equal.ts, "rows": found.equal.rows, "key": key}])

    def note_table(self, found: VerifiedTable, words: Sequence[str], *, repaired: bool = False) -> None:
        """A table was compared. ``words``: what may explain that it differs. ``repaired``: no row of it differs any more."""
        about = {"table": found.name, "target": found.target, "commit_ts": found.first_ts or found.ts}
        rows: list[dict[str, Any]] = [
            {"kind": "left out", "words": one.words, "sql": [one.mend] if one.mend else None} for one in found.left_out
        ]
        table: dict[str, Any] = {"kind": "table", "differs": found.differs and not repaired, "words": "; ".join(words) or None}
        if (tally := found.tally) is not None:
            rows += [_difference(difference, self._flavour) for difference in tally.listed]
            counts = (tally.rows, 0) if repaired else (tally.equal, tally.differing)
            table |= {"rows": tally.rows, "table_id": found.table_id} | dict(zip(("equal", "differing"), counts, strict=True))
        self._write([about | row for row in (*rows, table)])
        if found.tally is not None and not table["differs"]:
            self._equal.add(found.name)

    def note_changes(self, ts: int, found: Sequence[VerifiedTable]) -> None:
        """The rows that had changed up to ``ts`` were compared."""
        rows, differing = (sum(getattr(table.tally, name) for table in found if table.tally) for name in ("rows", "differing"))
        self._write([{"kind": "changes", "commit_ts": ts, "rows": rows, "differing": differing, "words": self._compares}])

    def changes_upto(self) -> int:
        """The ts up to which changed rows were compared within a day; 0: none."""
        try:
            self.newest_batch()
            found = self.found("SELECT commit_ts, words, recorded_at FROM t WHERE kind = 'changes'")
        except FAULTS as error:
            self.trouble = reason_of(error)
            return 0
        since = _now() - _AS_OLD
        return max((row["commit_ts"] for row in found if row["words"] == self._compares and row["recorded_at"] > since), default=0)

    def end(self, *, whole: bool = True) -> None:
        """Nothing more comes. ``whole``: all tables were seen."""
        self._write([{"kind": "end"}] if whole else [])
        self.flush()
        if whole and not self.trouble:
            self._remove_old()

    def flush(self) -> None:
        """Write what waits."""
        if not self._waiting:
            return
        self._written_at = time.monotonic()
        try:
            self.newest_batch()
            self.commit(pa.Table.from_pylist(self._waiting, schema=SCHEMA), -1)
            self.tidy()
        except FAULTS as error:
            self.trouble = reason_of(error)
        else:
            self._waiting, self.trouble = [], ""

    def _remove_old(self) -> None:
        """Remove what nobody reads any more: a table's earlier verifications close its findings until it is equal again."""
        again = ", ".join(map(quote_string, ("", *sorted(self._equal))))
        old = f"recorded_at < '{(_now() - self._kept).isoformat()}'"
        try:
            self.newest_batch()
            self.remove(f"""{old} AND kind NOT IN ('begin', 'end') AND (kind <> 'table' OR "table" IN ({again}))""")
        except FAULTS as error:
            self.trouble = reason_of(error)
        self._equal.clear()

    def _unfinished(self) -> Begun:
        try:
            self.newest_batch()
            found = self.found("SELECT * FROM t WHERE run = (SELECT max(run) FROM t WHERE kind = 'begin') ORDER BY recorded_at")
        except FAULTS as error:
            self.trouble = reason_of(error)
            return Begun()
        ended = any(row["kind"] == "end" for row in found)  # what has changed since is noted behind it
        if not found or ended or found[0]["words"] != self._compares or found[0]["recorded_at"] < _now() - _AS_OLD:
            return Begun()
        try:
            return begun_of(found)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            return Begun(unreadable=f"the Delta table {self.uri} has a row of kind part that no verify has written ({error!r})")

    def _write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._waiting += [{"run": self._run, "recorded_at": _now()} | dict(row) for row in rows]
        if time.monotonic() > self._written_at + _EVERY:
            self.flush()


def begun_of(rows: Sequence[Mapping[str, Any]]) -> Begun:
    """What the rows of a run say that was equal. Pure."""
    newest = {row["table"]: row for row in rows if row["kind"] == "table"}
    whole = [row for row in newest.values() if row["differs"] is False and row["rows"] is not None]
    differs_at = {row["table"]: row["commit_ts"] for row in newest.values() if row["differs"]}
    tables = {row["table"]: (row["commit_ts"], row["rows"]) for row in whole}
    parts = dict[str, EqualRows]()
    for row in rows:
        # Rows that were equal before the table was seen to differ may be those that differ.
        if row["kind"] == "part" and row["table"] not in tables and row["commit_ts"] >= differs_at.get(row["table"], 0):
            key = json.loads(row["key"])
            parts[row["table"]] = EqualRows(tuple(key["columns"]), key_from_json(key["end"]), row["rows"], row["commit_ts"])
    return Begun(rows[0]["run"], tables, parts, {row["table"]: row["table_id"] or 0 for row in whole})


def _difference(difference: RowDifference, flavour: Flavour) -> dict[str, Any]:
    wanted, found = (json.dumps(image) if image is not None else None for image in difference.images)
    return {
        "kind": difference.kind.name.lower(),
        "rows": difference.times,
        "key": json.dumps(difference.key),
        "columns": difference.changed,
        "wanted": wanted,
        "found": found,
        "sql": difference.sql(flavour),
    }


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
