"""What listens on this machine while a session of ours runs: other users of the machine may connect to it, too."""

import socket
import struct
from pathlib import Path

import pytest
from pyspark import SparkFiles
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.sinks.engine.spark_jvm import jvm_of

pytestmark = pytest.mark.spark

RPC_REQUEST, RPC_FAILURE = 3, 5
"""Types of messages of Spark's network protocol."""


def answer_to(port: int, body: bytes) -> tuple[int, str]:
    """Type and text of the answer to one request of Spark's RPC, from a client without the secret."""
    with socket.create_connection(("127.0.0.1", port), 20) as client:
        message = struct.pack(">BQI", RPC_REQUEST, 7, len(body)) + body
        client.sendall(struct.pack(">Q", 8 + len(message)) + message)
        with client.makefile("rb") as answers:
            size = struct.unpack(">Q", answers.read(8))[0]
            return answers.read(1)[0], answers.read(size - 9)[12:].decode(errors="replace")


def test_the_jvm_reads_nothing_of_who_has_not_its_secret(spark: SparkSession, tmp_path: Path) -> None:
    """It holds the target's password, and an RPC is a serialized Java object."""
    jvm = jvm_of(spark)
    blocks = jvm.org.apache.spark.SparkEnv.get().blockManager().blockTransferService().port()
    for port in (int(spark.conf.get("spark.driver.port") or 0), int(blocks)):
        kind, text = answer_to(port, b"\xac\xed\x00\x05sr")
        assert kind == RPC_FAILURE and "Expected SaslMessage" in text, text[:500]
    (tmp_path / "given").write_text("to every task")
    spark.sparkContext.addFile(str(tmp_path / "given"))
    read = spark.sparkContext.parallelize([0]).map(lambda _: Path(SparkFiles.get("given")).read_text()).collect()
    assert read == ["to every task"], "its own tasks have the secret"
