"""Options of the format: round trip and refusals."""

import pytest

from pyspark_tidb_binlog.binlog_source.source.options import StreamOptions, options_of, source_of, stream_options_of
from pyspark_tidb_binlog.conf.model import SecurityConfig, SourceConfig
from pyspark_tidb_binlog.schemas.errors import ConfigError

SECURED = SecurityConfig("/ca, of all.pem", "/cert.pem", "/key.pem", ("node", "a, b"))
FULL = SourceConfig("a:1,b:2", 7, "raw", 5, 9, 1024, False, 4096, "1.5s", "gzip", SECURED, "p3", "http://t:10080")


@pytest.mark.parametrize("config", [FULL, SourceConfig("http://r:1")])
def test_round_trip(config: SourceConfig) -> None:
    assert source_of(options_of(config)) == config


def test_stream_options_round_trip_and_names_ignore_case() -> None:
    extra = StreamOptions("/tmp/stop", 2.5, packed=True, bucket_ids=(0, 2, 12))
    options = {name.upper(): value for name, value in options_of(FULL, extra).items()}
    assert source_of(options) == FULL and stream_options_of(options) == extra


def test_names_as_a_person_writes_them() -> None:
    assert source_of({"pumps": "a:1", "sslCa": "ca.pem", "certAllowedCn": "a, b"}).security.cert_allowed_cn == ("a", "b")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs the option pumps"),
        ({"pumps": "a:1", "pump": "b"}, "no option pump;"),
        ({"pumps": "a:1", "clusterId": "x"}, "clusterId is 'x'"),
        ({"pumps": "a:1", "failOnDataLoss": "no"}, "failOnDataLoss"),
        ({"pumps": "a:1", "delivery": "tip"}, "delivery"),
        ({"pumps": "a:1", "maxBytesPerTrigger": "0"}, "max-bytes-per-trigger"),
        ({"pumps": "a:1", "maxPendingBytes": "0"}, "max-pending-bytes"),
        ({"pumps": "a:1", "certAllowedCn": '["a"'}, "certAllowedCn is .* JSON list"),
        ({"pumps": "a:1", "certAllowedCn": "a"}, "cert-allowed-cn needs ssl-ca"),
        ({"pumps": "a:1", "wakeIdlePumps": "200"}, "spark.wake-idle-pumps: '200' is not a pause: write 200ms"),
    ],
)
def test_what_has_no_sense_is_named(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        source_of(options)
