"""Broken sessions against the front: six seconds of them, in another place each time. ``make torture`` takes ten minutes."""

import pytest

from tests.support.rpc_fuzz import fire

pytestmark = pytest.mark.grpc


def test_the_front_outlives_whatever_clients_send():
    fire(6)
