"""Who makes room for whom: bounds for an address and for all, idle connections first, descriptors kept for the files."""

from dataclasses import dataclass

import pytest

from pyspark_tidb_binlog.binlog_source.rpc.connection_limits import FILES, ConnectionLimiter, ConnectionLimits, address_of, bounds

BOUNDS = ConnectionLimits(total=6, each=3, descriptors=1000)


@dataclass(eq=False)
class Client:
    name: str
    heard: float
    idle: bool = True


def crowds(**counts):
    """So many guests of each address; the first was silent for the longest."""
    there = ConnectionLimiter()
    guests = {}
    for address, count in counts.items():
        for number in range(count):
            guest = guests[f"{address}{number}"] = Client(f"{address}{number}", heard=number)
            there.add(guest, address)
    return there, guests


def comes(there, address):
    newcomer = Client("new", heard=100)
    there.add(newcomer, address)
    return there.one_too_many(newcomer, address, BOUNDS)


def test_there_is_room():
    there, _ = crowds(a=2, b=3)
    assert comes(there, "a") is None


def test_who_has_many_makes_room_for_its_own():
    there, guests = crowds(a=3)
    guests["a0"].idle = False
    assert comes(there, "a") is guests["a1"]


def test_who_has_many_makes_room_for_others():
    there, guests = crowds(a=1, b=3, c=2)
    assert comes(there, "d") is guests["b0"]


def test_who_has_calls_stays_and_the_newcomer_goes():
    there, guests = crowds(a=3)
    for guest in guests.values():
        guest.idle = False
    assert comes(there, "a").name == "new"


def test_who_has_gone_is_not_counted():
    there, guests = crowds(a=3, b=3)
    there.remove(guests["a0"], "a")
    there.remove(guests["a0"], "a")
    assert comes(there, "a") is None
    for name in ("b0", "b1", "b2"):
        there.remove(guests[name], "b")
    assert comes(there, "b") is None


def test_the_files_have_descriptors():
    assert bounds(4096, 512, 20_000) == ConnectionLimits(4096, 512, 20_000 - FILES)
    assert bounds(4096, 512, 1024) == ConnectionLimits(512, 256, 1024 - FILES)
    assert bounds(4096, 512, 400) == ConnectionLimits(200, 100, 300)
    assert bounds(10, 8, -1).total == 10
    assert bounds(10, 8, 1) == ConnectionLimits(1, 1, 1)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("somewhere", "somewhere"),
    ],
)
def test_an_ipv6_network_is_one_address(host, address):
    assert address_of(host) == address
