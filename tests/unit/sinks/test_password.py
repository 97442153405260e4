"""A target travels to the executors without its password in any one place."""

import pickle

import pytest

from pyspark_tidb_binlog.conf.model import TargetConfig
from pyspark_tidb_binlog.sinks.mysql.password import Here, ShippedTarget


@pytest.mark.parametrize("password", ["", "x", "s3cret ü\n", "p" * 4000])
def test_a_task_has_the_target_as_it_was(password: str) -> None:
    target = TargetConfig(host="db", user="u", password=password)
    assert pickle.loads(pickle.dumps(ShippedTarget.of(target, Here))).target() == target


def test_neither_half_holds_the_password() -> None:
    sent = []

    def broadcast(value: bytes) -> Here:
        sent.append(value)
        return Here(b"")

    function = pickle.dumps(ShippedTarget.of(TargetConfig(password="a long password"), broadcast))
    assert b"a long password" not in function and b"a long password" not in sent[0]
    assert len(set(pickle.dumps(ShippedTarget.of(TargetConfig(password="a long password"), Here)) for _ in range(3))) == 3


def test_nothing_of_it_is_shown() -> None:
    assert "secret" not in repr(ShippedTarget.of(TargetConfig(password="secret"), Here))
