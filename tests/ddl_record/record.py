"""What every DDL of the cases does to a real server's tables and rows, recorded, or compared with the record.

    python -m tests.ddl_record.record             executes all cases, writes a file per set, in a folder per server
    python -m tests.ddl_record.record --compare   executes all cases, prints each difference, fails if there is one

Promises: the same code at the same server gives the same bytes. A case begins without tables. Before each DDL its tables get rows, NULLs and extremes among them. A
DDL that is refused is executed once more without the rows of its tables. If it is refused again, later DDLs of these tables are left out.
"""

import argparse
import contextlib
import dataclasses
import difflib
import gzip
import hashlib
import json
import random
import re
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pymysql

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.jobs.lab.emulator.values import INT_BITS, value_for
from pyspark_tidb_binlog.jobs.lab.mariadb import UNSYNCED, PrivateMariaDB
from pyspark_tidb_binlog.schemas.ddl_jobs import On
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name as q
from pyspark_tidb_binlog.schemas.errors import ApplyError, DdlRefused
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.engine.choice import decided, schema_of
from pyspark_tidb_binlog.sinks.engine.segments import DdlStep
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import ensure_ddl_table
from pyspark_tidb_binlog.sinks.mysql.ddl.executor import apply_ddl
from pyspark_tidb_binlog.sinks.mysql.session import Session, begin_ddl, connect
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from pyspark_tidb_binlog.sinks.routing.routes import Routes
from tests.ddl_record.cases import SETS, Case, cases_of
from tests.support.leases import held
from tests.support.private_mysql import MYSQLD, PrivateMySQL

Json = dict[str, Any]
VARIANTS = ("plain", "routes", "old collations", "names in lower case")
MARKS = "record_marks"
ROWS, MOST_ROWS = 3, 12
EXTREME = 0.05
"""Chance of an extreme value: more of them, and most conversions would be refused."""
FOLDER = Path(__file__).parent


class Site:
    """One server in one variant."""

    def __init__(self, server: PrivateMariaDB, variant: str, stack: contextlib.ExitStack) -> None:
        self.variant = variant
        collations = "false" if variant == "old collations" else "true"
        self.config = ApplyConfig(drainer="record", checkpoint_schema=MARKS, upstream_new_collations=collations)
        to = server.target()
        self._where = to.socket or f"{to.host}:{to.port}"
        self._connect = lambda: connect(to, self.config, for_ddls=True)
        self.session: Session = self._connect()
        stack.callback(lambda: self.session.close())
        self.rows = stack.enter_context(server.connect()).cursor()
        self.rows.execute(
            "SET SESSION time_zone = '+00:00', foreign_key_checks = 0, sql_mode = 'NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES'"
        )

    def results(self, case: Case) -> Iterator[Json | None]:
        """What becomes of each DDL; None of one on a table that an earlier one has lost."""
        config = self.config if self.variant != "routes" else dataclasses.replace(self.config, routes=case.routes())
        routes = Routes.of(config)
        for name in (*map(routes.database, case.databases), *case.databases, MARKS):
            self.session.execute(f"DROP DATABASE IF EXISTS {q(name)}")
        ensure_ddl_table(self.session, config)
        known: dict[str, str | None] = {}
        lost = set[int]()
        for step in case.steps:
            ids = case.history.tables_of_job(step.job)
            if lost.intersection(ids) and step.job.kind.on is not On.DATABASE:
                lost.update(ids)
                yield None
                continue
            before = [t for i in ids if (t := step.before.table(i, case.history)) is not None]
            after = [t for i in ids if (t := case.history.table_at(i, step.job.version)) is not None]
            for table in before:
                self._fill(routes.moved(table), random.Random(f"{case.name} {step.job.id} {table.table_id}"))
            found = self._apply(step, case, config, [routes.moved(t) for t in before])
            names = {f"{q(t.schema)}.{q(t.name)}" for t in map(routes.moved, (*before, *after))}
            names |= {q(routes.database(schema_of(step, case.history)))} if step.job.kind.on is On.DATABASE else set()
            shown = {name: self._shown(name) for name in sorted(names)}
            rows = {name: self._checksum(name) for name, text in shown.items() if text and "." in name}
            yield found | {"tables": {n: t for n, t in shown.items() if t != known.get(n)}, "rows": {n: r for n, r in rows.items() if r}}
            known |= shown
            if found["fate"].endswith("lost"):
                lost.update(ids)

    def _apply(self, step: DdlStep, case: Case, config: ApplyConfig, before: list[TableAt]) -> Json:
        try:
            begin_ddl(Routes.of(config).database(schema_of(step, case.history)), self.session)
        except ApplyError:  # no such database: a stream goes on in a new session, too
            self.session.close()
            self.session = self._connect()
        fates = []
        for _ in range(2):
            try:
                step_ = decided(step, case.history, Selection.of(config))
                outcome = apply_ddl(self.session, step_, case.history, config, held(self.session, schema=MARKS), lambda _: None)
                losses = [loss.replace(self._where, "HERE") for loss in outcome.losses]
                return {"fate": " ".join([*fates, outcome.state]), "how": outcome.how, "losses": losses}
            except ApplyError as error:
                numbers = re.findall(r"error (\d+)", str(error))
                fates.append(f"{'refused' if isinstance(error, DdlRefused) else type(error).__name__} {' '.join(dict.fromkeys(numbers))};")
            self.session.rollback()
            for table in before:
                with contextlib.suppress(pymysql.Error):
                    self.rows.execute(f"DELETE FROM {q(table.schema)}.{q(table.name)}")
        return {"fate": " ".join([*fates, "lost"]), "how": "", "losses": []}

    def _fill(self, table: TableAt, chance: random.Random) -> None:
        name = f"{q(table.schema)}.{q(table.name)}"
        try:
            self.rows.execute(f"SELECT COUNT(*) FROM {name}")
        except pymysql.Error:
            return
        if self.rows.fetchall()[0][0] >= MOST_ROWS or table.info.is_view or table.info.is_sequence:
            return
        self.rows.execute(f"SHOW COLUMNS FROM {name}")
        there = {row[0].lower() for row in self.rows.fetchall() if "GENERATED" not in row[5].replace("DEFAULT_GENERATED", "")}
        columns = [c for c in table.info.target_columns() if not c.hidden]
        drawn = [[_value(c, chance) for c in columns] for _ in range(ROWS)]
        kept = [place for place, c in enumerate(columns) if c.name.lower() in there]
        if kept:
            places = f"({', '.join(['%s'] * len(kept))})"
            sql = f"INSERT IGNORE INTO {name} ({', '.join(q(columns[place].name).replace('%', '%%') for place in kept)}) VALUES "
            self.rows.execute(sql + ", ".join([places] * ROWS), [row[place] for row in drawn for place in kept])

    def _shown(self, name: str) -> str | None:
        """The definition of a table, a view or a database, without what differs from run to run or between versions of a server."""
        try:
            self.rows.execute(f"SHOW CREATE {'TABLE' if '.' in name else 'DATABASE'} {name}")
        except pymysql.Error:
            return None
        text = re.sub(r" AUTO_INCREMENT=\d+| DEFINER=\S+|/\*M?!\d+ | ?\*/", "", str(self.rows.fetchall()[0][1]))
        return re.sub(r"\s+", " ", text).replace(", ", ",\n")

    def _checksum(self, name: str) -> str:
        """How many rows, and a checksum of them that depends on no order of rows or columns."""
        try:
            self.rows.execute(f"SELECT * FROM {name}")
        except pymysql.Error as error:
            return f"error {error.args[0]}"
        names = [column[0].lower() for column in self.rows.description or ()]
        places = sorted(range(len(names)), key=names.__getitem__)
        found = sorted(repr([(names[place], row[place]) for place in places]) for row in self.rows.fetchall())
        return f"{len(found)} {hashlib.sha1(''.join(found).encode()).hexdigest()[:10]}" if found else ""


def _value(column: ColumnInfo, chance: random.Random) -> Any:
    """A value of a row, NULL and extremes among them."""
    value = value_for(column, chance)
    if value is not None and chance.random() < EXTREME:
        bits = INT_BITS.get(column.tp, 0)
        ends: dict[int, tuple[Any, ...]] = {
            ColumnType.DATE: ("0000-00-00", "9999-12-31"), ColumnType.DATETIME: ("0000-00-00 00:00:00", "9999-12-31 23:59:59"),
            ColumnType.TIMESTAMP: ("1970-01-01 00:00:01", "2038-01-19 03:14:07"), ColumnType.TIME: ("-838:59:59", "838:59:59"),
            ColumnType.DECIMAL: ("0", "9" * min(column.flen - column.decimal, 65)), ColumnType.VARCHAR: ("", "x" * min(column.flen, 255)),
        }  # fmt: skip
        numbers = (0, (1 << bits) - 1) if column.unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1) if bits else (value,)
        value = chance.choice(numbers if bits else ends.get(column.tp, (value,)))
    return json.dumps(value) if isinstance(value, dict) else value


@contextlib.contextmanager
def sites(variants: Iterable[str] = VARIANTS, server: PrivateMariaDB | None = None) -> Iterator[list[Site]]:
    """A site per variant, on ``server`` or servers of their own."""
    servers: dict[str, PrivateMariaDB] = {"0": server} if server is not None else {}
    with contextlib.ExitStack() as stack:
        for variant in variants:
            folds = "1" if variant == VARIANTS[-1] else "0"
            if folds not in servers:
                made = PrivateMySQL if MYSQLD else PrivateMariaDB
                servers[folds] = stack.enter_context(made(options={"lower-case-table-names": folds} | ({} if MYSQLD else UNSYNCED)))
        yield [Site(servers["1" if variant == VARIANTS[-1] else "0"], variant, stack) for variant in variants]


def lines_of(cases: Iterable[Case], places: list[Site]) -> Iterator[Json]:
    """What is recorded of the cases: a line per DDL."""
    for case in cases:
        found = {site.variant: list(site.results(case)) for site in places}
        for number, step in enumerate(case.steps):
            results = {variant: result for variant, rows in found.items() if (result := rows[number]) is not None}
            yield {"case": case.name, "job": step.job.id, "query": step.query, "found": results}


def file_of(name: str, site: Site) -> Path:
    """The record of a set at this kind of server."""
    version = ".".join(re.findall(r"\d+", site.session.version)[:2])
    return FOLDER / f"{site.session.flavour.name.lower()}-{version}" / f"{name}.jsonl.gz"


def write(path: Path, version: str, lines: list[Json]) -> None:
    """Write a record."""
    path.parent.mkdir(exist_ok=True)
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in ({"server": version}, *lines))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def differences(path: Path, lines: Iterable[Json], ignored: Iterable[str] = ()) -> Iterator[str]:
    """How ``lines`` differ from those of the record that are of the same cases and variants, in words; it is compared key by key."""
    recorded = [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()[1:]]
    by_job, cases = {(line["case"], line["job"]): line for line in recorded}, {line["case"] for line in recorded}
    told = set[tuple[str, str, str]]()
    for line in lines:
        if line["case"] not in cases:
            yield f"{line['case']}, job {line['job']}: not recorded"
        words_of: dict[str, list[str]] = {}
        for variant, found in line["found"].items():
            old = by_job.get((line["case"], line["job"]), {"found": {}})["found"].get(variant)
            if old is None:
                continue  # in the record, its table was lost before
            of_keys = [_differs(key, old.get(key), found[key]) for key in found if key not in ignored and old.get(key) != found[key]]
            of_variant = {(line["case"], variant, words) for words in of_keys} - told  # a table differs for as long as it lives
            told |= of_variant
            for _, _, words in sorted(of_variant):
                words_of.setdefault(words, []).append(variant)
        for words, variants in words_of.items():
            yield f"{line['case']}, job {line['job']}, {', '.join(variants)}: {line['query']}\n  {words}"


def _differs(key: str, old: Any, new: Any) -> str:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return f"{key}: recorded {old!r}, found {new!r}"
    texts = [(name, str(old.get(name)), str(new.get(name))) for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    return "\n  ".join(
        f"{key} of {name}: "
        + " | ".join(
            x.strip() for x in difflib.unified_diff(a.splitlines(), b.splitlines(), n=0, lineterm="") if x[:2] not in ("--", "++", "@@")
        )
        for name, a, b in texts
    )


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", action="store_true", help="compare with the record instead of writing it")
    parser.add_argument("--ignore", nargs="*", default=[], choices=["fate", "how", "losses", "tables", "rows"], help="what is not compared")
    parser.add_argument("--sets", nargs="*", default=SETS, choices=SETS, help="the sets of cases")
    parser.add_argument("--cases", nargs="*", default=[], help="names of the cases to compare, such as 'seed 3'; all of them unless given")
    options, differ = parser.parse_args(), 0
    if options.cases and not options.compare:
        parser.error("--cases is for --compare: a record has all cases")
    with sites() as places:
        version = places[0].session.version
        print(f"server {version}")
        for name in options.sets:
            began, path = time.monotonic(), file_of(name, places[0])
            lines = list(lines_of((c for c in cases_of(name) if not options.cases or c.name in options.cases), places))
            words = f"{name}: {len(lines)} DDLs, {sum(len(line['found']) for line in lines)} executions, {time.monotonic() - began:.0f} s"
            if options.compare:
                found = list(differences(path, lines, options.ignore))
                differ += len(found)
                print(*found, f"{words}, {len(found)} differ from {path.relative_to(FOLDER)}", sep="\n")
            else:
                write(path, version, lines)
                print(f"{words}, {path.stat().st_size:,} bytes in {path.relative_to(FOLDER)}")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
