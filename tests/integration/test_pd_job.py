"""A drainer, and a query of changes, that are told PD's addresses and nothing else of the upstream, as a real drainer's file does it: Pumps, cluster
id, timestamps, DDL history and the drainer's own registration come from there, with and without TLS.
"""

import contextlib
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pyspark_tidb_binlog.binlog_source.cluster.pd import PdRegistry
from pyspark_tidb_binlog.binlog_source.cluster.registry import DRAINERS, PUMPS
from pyspark_tidb_binlog.binlog_source.wire.recorded_case import RecordedCase, load
from pyspark_tidb_binlog.conf.model import PumpConfig
from pyspark_tidb_binlog.jobs import ctl
from pyspark_tidb_binlog.jobs.lab.emulator.rehearsal import feed
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.lab.pump_process import PumpProcess
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle
from pyspark_tidb_binlog.schemas.tls import TlsSettings
from tests.support.certificates import Authority, table_of
from tests.support.drainer_process import arguments_of
from tests.support.fakes.etcd import EtcdProcess
from tests.support.fakes.pd import FakePd
from tests.support.golden_case import GOLDEN, compared
from tests.support.registry_sites import credentials
from tests.support.spark_queries import drained

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql]


# Without TLS the registry is the same, which ``tests/contract`` shows.
@pytest.fixture(params=[pytest.param("without TLS", marks=pytest.mark.slow), "with TLS"])
def tls(request: pytest.FixtureRequest, tmp_path: Path) -> TlsSettings | None:
    return Authority(tmp_path / "ca").settings("node", "node", ("node",)) if request.param == "with TLS" else None


@pytest.fixture
def case() -> RecordedCase:
    return load(GOLDEN / "txn")


@pytest.fixture
def pd(tmp_path: Path, case: RecordedCase, tls: TlsSettings | None) -> Iterator[FakePd]:
    """With one TiDB server, which has the case's history."""
    text = case.history.read_bytes()
    jobs = json.loads(gzip.decompress(text) if text[:2] == b"\x1f\x8b" else text)
    with EtcdProcess(tmp_path / "etcd") as etcd, FakePd(etcd.address, case.cluster_id, 2, credentials(tls)) as pd:
        tidb = ClusterService(Oracle(), case.cluster_id, history=lambda: jobs, tls=tls).start()
        host, _, port = tidb.address.rpartition(":")
        value = json.dumps({"ip": host, "listening_port": 4000, "status_port": int(port)})
        etcd.gateway("kv/put", key=b"/tidb/server/info/one", value=value.encode())
        yield pd
        tidb.stop()


@pytest.fixture
def pumps(tmp_path: Path, case: RecordedCase, pd: FakePd, tls: TlsSettings | None) -> Iterator[list[PumpProcess]]:
    """They are told PD's addresses alone, too."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                PumpProcess(
                    PumpConfig(
                        f"pump-{number}",
                        "127.0.0.1:0",
                        data_dir=str(tmp_path / f"pump-{number}"),
                        pd_urls=pd.urls,
                        fake_binlog_interval=0,
                        stop_write_at_available_space="",
                        security=table_of(tls),
                    )
                )
            )
            for number in range(1, len(case.pumps) + 1)
        ]


@pytest.mark.shows("pd-urls", "a real drainer.toml")
def test_a_real_drainers_file_is_enough(
    tmp_path: Path,
    case: RecordedCase,
    pd: FakePd,
    pumps: list[PumpProcess],
    tls: TlsSettings | None,
    spark: SparkSession,
    mariadb: PrivateMariaDB,
) -> None:
    """It is read by the command's ``main``, in this session; ``test_tls_job.py`` runs the command itself over TLS."""
    for _ in feed(case, [pump.address for pump in pumps], tls=tls):
        pass
    to = mariadb.target()
    security = (
        f'[security]\nssl-ca = "{tls.ca}"\nssl-cert = "{tls.cert}"\nssl-key = "{tls.key}"\ncert-allowed-cn = ["node"]\n' if tls else ""
    )
    file = tmp_path / "drainer.toml"
    file.write_text(
        f'addr = "127.0.0.1:0"\nnode-id = "d1"\ndata-dir = "{tmp_path / "data"}"\npd-urls = "{pd.urls}"\n{security}'
        f'[syncer]\ndb-type = "mysql"\n[syncer.to]\nhost = "127.0.0.1"\nport = {to.port}\nuser = "{to.user}"\n'
    )
    flags = {"config": file, "initial-commit-ts": case.start_ts, "spark.ending-commit-ts": case.end_ts, "spark.wake-idle-pumps": 0}
    password = {"MYSQL_PSWD": to.password}
    drained(spark, arguments_of(flags), password)
    assert compared(case.directory, to) == ""
    registry = PdRegistry(pd.urls, tls)
    with contextlib.closing(registry):
        assert [(node.node_id, node.state.value) for node in registry.listing(DRAINERS).nodes] == [("d1", "paused")]
        assert [node.state.value for node in registry.listing(PUMPS).nodes] == ["online"] * len(pumps)
    secured = [f"-ssl-ca={tls.ca}", f"-ssl-cert={tls.cert}", f"-ssl-key={tls.key}"] if tls else []
    assert ctl.main(["drainers", f"-pd-urls={pd.urls}", *secured]) == 0
    changes_need_no_more(spark, case, pd, tls)


def changes_need_no_more(spark: SparkSession, case: RecordedCase, pd: FakePd, tls: TlsSettings | None) -> None:
    """The executors find the DDL history through PD, too."""
    secured = {"sslCa": tls.ca, "sslCert": tls.cert, "sslKey": tls.key, "certAllowedCn": "node"} if tls else {}
    span = {"startingCommitTs": str(case.start_ts), "endingCommitTs": str(case.end_ts)}
    urls = pd.urls.replace("https://", "").replace("http://", "")

    def read(**options: str) -> DataFrame:
        return spark.read.format("tidb_binlog").options(pumps=f"pd://{urls}", **span, **options).load()

    found = read(**secured).where("op <> 'ddl'").groupBy("database", "table").count().collect()
    database, name = case.tables[0]
    assert {(row.database, row.table) for row in found} >= {tuple(table) for table in case.tables}
    of_one = read(**secured, table=f"{database}.{name}").where("_change_type <> 'update_preimage'").count()
    assert of_one == next(row["count"] for row in found if (row.database, row.table) == (database, name)) > 0
    if tls is not None:
        with pytest.raises(PySparkException, match="sslCa"):
            read(pumpPatience="2").collect()
