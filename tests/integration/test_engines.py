"""Other programs read the tables of a lake exactly, or say that they do not: docs/engines.md."""

import datetime
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.schemas.changes.json_texts import documents_as
from pyspark_tidb_binlog.schemas.changes.variant_values import STORED_VARIANT
from pyspark_tidb_binlog.sinks.lake.large_mirrors import LargeMirrors
from pyspark_tidb_binlog.sinks.lake.mirror_table import MirrorTable, Stamp
from tests.support.ddl_jobs import VARCHAR, column, table
from tests.support.engines import ENGINES, PAGE, VERDICTS, Row, document, is_installed, literal, page, verdict
from tests.support.lake_scene import KEY, LakeScene
from tests.support.mapped_mirror import mapped

pytestmark = [pytest.mark.spark]

STAMP = Stamp(7, 1)
NOON = datetime.datetime(2026, 11, 20, 12, 0, 59, 999999)
TIMES = [
    NOON,
    *(datetime.datetime(year, 1, 1, 0, 0, 59, 999999) for year in (1, 1582, 1850, 1970)),
    datetime.datetime(1582, 10, 4, 23, 59, 59, 999999),
]
TIMES += [datetime.datetime(9999, 12, 31, 23, 59, 59, 999999), datetime.datetime(1969, 12, 31, 23, 59, 59, 999999)]
STAMPS = [datetime.datetime(1970, 1, 1, 0, 0, second, 999999, datetime.UTC) for second in (1, 59)]
STAMPS += [
    datetime.datetime(2026, *of, 59, 999999, datetime.UTC)
    for of in ((3, 8, 9, 59), (3, 8, 10, 0), (11, 1, 8, 59), (11, 1, 9, 30), (11, 20, 12, 0))
]
STAMPS += [datetime.datetime(2038, 1, 19, 3, 14, 7, 999999, datetime.UTC)]
"""DATETIMEs, and TIMESTAMPs, which TiDB has from 1970 to 2038; each with digits that statistics do not have. Of earlier TIMESTAMPs Spark with
``timeParserPolicy = LEGACY`` would pass over files."""
SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "name": pa.string(),
        "price": pa.decimal128(20, 4),
        "at": pa.timestamp("us"),
        "stamp": pa.timestamp("us", "UTC"),
        "day": pa.date32(),
        "ratio": pa.float64(),
        "raw": pa.binary(),
        "huge": pa.decimal128(20, 0),
        "a b,c": pa.int32(),
    }.items()
)
DOCUMENTS = {1: '{"n": 1, "p": 1.5}', 2: "null", 3: None}


def rows_of(*ids: int) -> list[Row]:
    cells = (
        "é",
        Decimal("1.5000"),
        NOON,
        NOON.replace(tzinfo=datetime.UTC),
        datetime.date(1582, 10, 4),
        0.1,
        b"\x00\xff",
        Decimal(2**64 - 1),
    )
    return [dict(zip(SCHEMA.names, (i, *(cells if i % 2 else (None,) * len(cells)), 7), strict=True)) for i in ids]


class Made:
    """The tables of ``VERDICTS``, and what each has."""

    def __init__(self, directory: Path, spark: SparkSession) -> None:
        self._directory, self._large = directory, LargeMirrors(spark, 0)
        self.tables: dict[str, tuple[str, list[Row]]] = {}
        kinds = iter(VERDICTS)
        self._keep(next(kinds), self._mirror(), rows_of(1, 2))
        self._keep(next(kinds), *self._added())
        plain, renamed = self._mirror(), [(f, f.name) for f in SCHEMA.remove(SCHEMA.get_field_index("raw")).remove(1)]
        renamed.append((pa.field("title", pa.string()), "name"))
        rows = [{"title" if name == "name" else name: cell for name, cell in row.items() if name != "raw"} for row in rows_of(1, 2, 3, 4)]
        assert not plain.alter(renamed, STAMP)
        after = pa.schema([field for field, _ in renamed])
        turned = plain.rewritten(
            self._uri(), after, lambda found: found.rename_columns(_new(found.schema.names)).select(after.names), STAMP
        )
        self._keep(next(kinds), turned, rows[:2])
        for kind in (pa.string(), STORED_VARIANT):
            self._keep(next(kinds), *self._documents(kind))
        large = self._mirror(large=self._large)
        large.replace(pa.table({"id": [2]}), pa.Table.from_pylist(rows_of(3, 4), SCHEMA), STAMP)
        self._keep(next(kinds), large, rows_of(1, 3, 4))
        large = self._mirror(large=self._large)
        assert large.alter(renamed, STAMP)
        large.append(pa.Table.from_pylist(rows[2:], after), STAMP)
        self._keep(next(kinds), large, rows)
        self._keep(next(kinds), self._mirror(mapped), rows_of(1, 2))
        self.tables[next(kinds)] = ledger(directory / "lake")

    def _uri(self) -> str:
        return str(self._directory / f"t{len(list(self._directory.iterdir()))}")

    def _keep(self, kind: str, mirror: MirrorTable, rows: list[Row]) -> None:
        self.tables[kind] = mirror.uri, rows

    def _mirror(self, created: Any = MirrorTable.created, schema: pa.Schema = SCHEMA, large: LargeMirrors | None = None) -> MirrorTable:
        made: MirrorTable = created(self._uri(), schema, STAMP, large)
        if schema is SCHEMA:
            made.append(pa.Table.from_pylist(rows_of(1, 2), SCHEMA), STAMP)
            made.tidy(SCHEMA, STAMP)
        return made

    def _added(self) -> tuple[MirrorTable, list[Row]]:
        mirror, more = self._mirror(), pa.field("more", pa.timestamp("us"))
        assert mirror.alter([(more, None), *((field, field.name) for field in SCHEMA)], STAMP)
        fresh = [{**row, "more": NOON} for row in rows_of(3, 4)]
        mirror.append(pa.Table.from_pylist(fresh, pa.schema([more, *SCHEMA])), STAMP)
        return mirror, [*({**row, "more": None} for row in rows_of(1, 2)), *fresh]

    def _documents(self, kind: pa.DataType) -> tuple[MirrorTable, list[Row]]:
        schema, texts = pa.schema([("id", pa.int64()), ("doc", kind)]), pa.array(DOCUMENTS.values(), pa.string())
        mirror = self._mirror(schema=schema)
        mirror.append(pa.table([pa.array(DOCUMENTS), documents_as(texts, kind)], schema=schema), STAMP)
        return mirror, [{"id": 1, "doc": document({"n": 1, "p": 1.5})}, {"id": 2, "doc": document(None)}, {"id": 3, "doc": None}]


def _new(names: list[str]) -> list[str]:
    return ["title" if name == "name" else name for name in names]


def ledger(lake: Path) -> tuple[str, list[Row]]:
    """One with some files, and a checkpoint: ``op`` and ``database`` have no statistics."""
    scene = LakeScene.of(table(10, "t", [column(1, "id", KEY), column(2, "v", VARCHAR)]))
    for n in range(3):
        scene.row(30 + n, 10, 2, None, {"id": n, "v": b"x"})
    scene.row(40, 10, 2, {"id": 0, "v": b"x"}, None)
    scene.run(lake, 25, 31, 35, 45)
    DeltaTable(lake / "changes").create_checkpoint()
    rows = [("insert", 30 + n, document({"id": n, "v": "x"})) for n in range(3)]
    made = [{"op": op, "database": "d", "commit_ts": ts, "after": after} for op, ts, after in [*rows, ("delete", 40, None)]]
    return str(lake / "changes"), [{"op": "ddl", "database": "d", "commit_ts": ts, "after": None} for ts in (10, 20)] + made


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[str, list[Row]]]:
    return Made(tmp_path_factory.mktemp("engines"), spark).tables


@pytest.fixture(params=ENGINES, ids=[package for package, _ in ENGINES.values()])
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    if not is_installed(request.param):
        pytest.skip(f"{ENGINES[request.param][0]} is not installed")
    yield request.param


@pytest.mark.parametrize("kind", VERDICTS)
def test_each_engine_reads_a_table_or_refuses_it(kind: str, engine: str, made: Mapping[str, tuple[str, list[Row]]]) -> None:
    assert verdict(engine, *made[kind]) == VERDICTS[kind][engine]


def test_the_page_is_as_made() -> None:
    assert PAGE.read_text() == page(), "make engines"


def test_columns_without_statistics_are_filtered(engine: str, made: Mapping[str, tuple[str, list[Row]]]) -> None:
    uri, wanted = made["the ledger, `changes`"]
    for name, value in (("op", "insert"), ("op", "delete"), ("op", "ddl"), ("database", "d"), ("database", "e")):
        found = sorted(row["commit_ts"] for row in ENGINES[engine][1](uri, (name, "=", value)))
        assert found == [row["commit_ts"] for row in wanted if row[name] == value], (name, value)


@pytest.fixture(params=["log", "checkpoint"])
def times(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A mirror with each of ``TIMES`` and ``STAMPS`` in a file of its own, whose statistics have only milliseconds, below the time. It is not shared: Spark
    keeps the statistics that the first session has parsed.
    """
    schema = pa.schema({"at": pa.timestamp("us"), "stamp": pa.timestamp("us", "UTC")}.items())
    mirror = MirrorTable.created(str(tmp_path / "t"), schema, STAMP)
    for time, stamp in zip(TIMES, STAMPS, strict=True):
        mirror.append(pa.table([[time], [stamp]], schema=schema), STAMP)
    if request.param == "checkpoint":
        mirror._table.create_checkpoint()
    return mirror.uri


FILTERS = [(name, op, one) for name, all_ in (("at", TIMES), ("stamp", STAMPS)) for op in ("=", ">=", "<=") for one in all_]


def wanted(name: str, op: str, value: datetime.datetime) -> list[datetime.datetime]:
    """The times ``at`` of the rows of which a condition holds."""
    cells = zip(TIMES, TIMES if name == "at" else STAMPS, strict=True)
    return sorted(at for at, cell in cells if {"=": cell == value, ">=": cell >= value, "<=": cell <= value}[op])


def test_times_with_microseconds_are_filtered(engine: str, times: str) -> None:
    if engine.startswith("Spark"):
        pytest.skip("by the next test")
    for where in FILTERS:
        assert sorted(row["at"] for row in ENGINES[engine][1](times, where)) == wanted(*where), where


ZONES = [("UTC", "CORRECTED"), ("America/Los_Angeles", "LEGACY"), ("Asia/Shanghai", "EXCEPTION")]
"""A session's, and how it parses times."""
_LATER = {("log", "UTC"), ("checkpoint", "America/Los_Angeles"), ("log", "Asia/Shanghai")}


@pytest.mark.parametrize(
    ("times", "zone", "policy"),
    [
        pytest.param(form, *one, marks=[pytest.mark.slow] if (form, one[0]) in _LATER else [], id=f"{form}-{one[1].lower()}")
        for form in ("log", "checkpoint")
        for one in ZONES
    ],
    indirect=["times"],
)
def test_spark_filters_times_in_any_zone(zone: str, policy: str, times: str, spark: SparkSession) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    session.conf.set("spark.sql.legacy.timeParserPolicy", policy)
    session.read.format("delta").load(times).createOrReplaceTempView("t")
    filters = [where for where in FILTERS if where[1] != "<="]
    found: dict[int, list[datetime.datetime]] = {number: [] for number in range(len(filters))}
    each = (f"SELECT {number} AS number, at FROM t WHERE {name} {op} {literal(one)}" for number, (name, op, one) in enumerate(filters))
    for number, at in session.sql(" UNION ALL ".join(each)).collect():
        found[number].append(at)
    assert {filters[number]: sorted(at) for number, at in found.items()} == {where: wanted(*where) for where in filters}
