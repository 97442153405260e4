"""The address of this machine that a default is made of."""

import ipaddress
import socket

from pyspark_tidb_binlog.conf.unset import first_ipv4


def test_the_first_address_is_one_of_this_machine() -> None:
    address = ipaddress.IPv4Address(first_ipv4())
    assert not address.is_unspecified
    with socket.socket() as listening:
        listening.bind((str(address), 0))
        assert listening.getsockname()[0] == str(address)
