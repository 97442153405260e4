"""What ``drainer --check`` says of the upstream's account."""

from typing import Any

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, SourceConfig, UpstreamConfig
from pyspark_tidb_binlog.jobs.check.upstream_checks import UpstreamSight, upstream_remarks
from pyspark_tidb_binlog.jobs.entry.drainer_options import NO_BOOTSTRAP, BootstrapRequest
from pyspark_tidb_binlog.schemas.ddl_jobs import JobReader
from pyspark_tidb_binlog.schemas.errors import ServerRefused
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from tests.support.ddl_jobs import database, job, table
from tests.support.fakes.told_tidb import ToldTidb

HISTORY = SchemaHistory.of(JobReader().read([database(1), job(2, 3, table(10, "t")), job(3, 3, table(11, "secret"))]))
CONFIG = DrainerConfig(source=SourceConfig(pumps="pd://pd:2379", cluster_id=7), upstream=UpstreamConfig(host="tidb"), apply=ApplyConfig())
ALL = BootstrapRequest(everything=True)
READY: dict[str, Any] = {
    "CURRENT_USER": [("drainer@%",)],
    "SHOW GRANTS": [("GRANT SELECT ON d.* TO 'drainer'@'%'",)],
    "tidb_gc_life_time": [("10m0s",)],
    "tidb_current_ts": [("449000000000000001",)],
    "tidb_servers_info": [("one", "10.0.0.1", 4000, "On")],
}


def said(
    answers: dict[str, Any], request: BootstrapRequest = ALL, config: DrainerConfig = CONFIG, flavour: Flavour = Flavour.TIDB
) -> list[str]:
    source = ToldTidb(READY | answers, flavour)
    return [
        remark.words for remark in upstream_remarks(config, request, UpstreamSight(7, HISTORY, lambda: {"one": "10.0.0.1:4000"}), source)
    ]


def test_an_account_that_is_ready() -> None:
    found = said({})
    assert not [words for words in found if words.startswith("hinders")]
    assert found[0].endswith(
        "needs these rights, and no others; GRANT SELECT ON `d`.* TO 'drainer'@'%'; GRANT SELECT ON `mysql`.`tidb` TO 'drainer'@'%'"
    )
    assert "tidb_gc_life_time is 10m0s; PD keeps GC behind the snapshot" in found[1] and len(found) == 2


NO_SAFE_POINT = ServerRefused("target tidb:4000 refused", 1105, "can not get 'tikv_gc_safe_point'", "tidb:4000")
REFUSED = ServerRefused("target tidb:4000 refused", 1142, "SELECT command denied", "tidb:4000")


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"SHOW GRANTS": [("GRANT USAGE ON *.* TO 'drainer'@'%'",)], "`secret`": REFUSED}, "may not read d.secret: they cannot be copied"),
        ({"tidb_snapshot": ServerRefused("target tidb:4000 refused", 8055, "GC", "tidb:4000")}, "GC has passed it"),
        ({"tidb_snapshot": REFUSED}, "no snapshot can be read: upstream TiDB tidb:4000 refused"),
        ({"tidb_snapshot": NO_SAFE_POINT}, "has no tikv_gc_safe_point yet: GC has not run"),
        ({"CURRENT_USER": REFUSED}, "correct spark.upstream.host, port, user or password"),
        ({"tidb_servers_info": [("other", "10.9.9.9", 4000, "On")]}, r"another cluster than 7"),
        (
            {"tidb_servers_info": [("one", "10.0.0.1", 4000, "Skipping")]},
            "binlog Skipping: rows written through this server never reach the stream",
        ),
    ],
)
def test_what_hinders(answers: dict[str, Any], words: str) -> None:
    hindering = [line for line in said(answers) if line.startswith("hinders")]
    assert len(hindering) == 1 and words in hindering[0]
    assert "password" in words or "password" not in hindering[0], "only where no account is let in"
    assert [line for line in said(answers, NO_BOOTSTRAP) if line.startswith("hinders")] == [], "nothing is to be copied"


@pytest.mark.parametrize("status", ["On", "Unknown", ""])
def test_a_server_that_has_written_nothing_yet_is_no_remark(status: str) -> None:
    assert said({"tidb_servers_info": [("one", "10.0.0.1", 4000, status)]}) == said({})


def test_other_upstreams() -> None:
    assert "is no TiDB (8.0-mariadb)" in said({}, flavour=Flavour.MARIADB)[0]
    no_pd = DrainerConfig(source=SourceConfig(pumps="10.0.0.1:8250"), upstream=CONFIG.upstream)
    assert any("nothing holds GC back, because PD is not the registry" in line for line in said({}, config=no_pd))
    none = list(upstream_remarks(DrainerConfig(), ALL, UpstreamSight(7, HISTORY, dict)))
    assert [remark.words.partition(":")[0] for remark in none] == ["hinders  spark.upstream"]
    assert "and --bootstrap-all copies from it" in none[0].words
    assert list(upstream_remarks(DrainerConfig(), NO_BOOTSTRAP, UpstreamSight(7, HISTORY, dict))) == []
    older = {"tidb_gc_life_time": ServerRefused("unknown variable", 1193, "", "tidb:4000"), "tikv_gc_life_time": [("24h",)]}
    assert any("tidb_gc_life_time is 24h" in line for line in said(older))
    untold = {"tidb_servers_info": ServerRefused("no such table", 1146, "", "tidb:4000")}
    assert any("does not report its TiDB servers" in line for line in said(untold))
