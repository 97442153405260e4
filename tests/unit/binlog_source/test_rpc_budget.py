"""Memory for unfinished requests: who is granted what, in which order, and that it all comes back."""

import pytest

from pyspark_tidb_binlog.binlog_source.rpc.budget import Budget, Share


class Client:
    """A connection that notes what it is granted."""

    def __init__(self, budget, owner=""):
        self.told = []
        self.share = Share(budget, self.told.append, owner)


@pytest.fixture
def budget():
    return Budget(100)


def clients(budget, count):
    return [Client(budget) for _ in range(count)]


def test_what_fits_is_granted_at_once_and_comes_back(budget):
    (client,) = clients(budget, 1)
    assert client.share.ask(1, 20) and budget.held == 20
    assert not client.share.ask(3, 6), "a quarter is one connection's most"
    client.share.release(1, 0, asked=True)
    assert client.told == [3] and budget.held == 6
    client.share.release(3, 0, asked=True)
    assert budget.held == 0 and client.share.held == 0 and not budget.waiting


def test_who_waits_for_its_own_connection_holds_no_other_up(budget):
    greedy, other = clients(budget, 2)
    assert greedy.share.ask(1, 25)
    assert not any(greedy.share.ask(stream_id, 25) for stream_id in range(3, 1000, 2))
    assert other.share.ask(1, 25)


def test_who_waits_for_the_servers_room_is_not_overtaken(budget):
    *holders, first, second = clients(budget, 4)
    for holder in holders:
        assert holder.share.ask(1, 24)
    assert not first.share.ask(1, 20) and not second.share.ask(1, 1)
    assert budget.held == 48
    holders[0].share.release(1, 0, asked=True)
    assert first.told == [1] and second.told == [1] and budget.held == 45


def test_huge_requests_pass_one_at_a_time_beside_the_rest(budget):
    one, two, small = clients(budget, 3)
    assert one.share.ask(1, 10_000) and not two.share.ask(1, 5_000) and not one.share.ask(3, 26)
    assert small.share.ask(1, 25) and budget.held == 25
    one.share.release(1, 0, asked=True)
    assert two.told == [1] and one.told == []
    two.share.release(1, 0, asked=True)
    assert one.told == [3]


def test_the_capacity_may_be_set_later():
    budget = Budget()
    budget.capacity = 100
    (client,) = clients(budget, 1)
    assert client.share.ask(1, 101), "one that is larger than everything passes too"


def test_what_comes_unasked_has_a_half_of_its_own(budget):
    one, two = clients(budget, 2)
    one.share.count(50)
    assert not budget.overdrawn
    one.share.count(1)
    assert budget.overdrawn and one.share.held == one.share.idle == 51
    assert two.share.ask(1, 25), "it keeps no grant waiting"
    one.share.release(5, 51, asked=False)
    assert budget.held == 25 and not budget.overdrawn


def test_what_waits_for_us_is_excused(budget):
    one, two = clients(budget, 2)
    one.share.count(10)
    one.share.excuse(10)
    one.share.count(5, asked=True)
    one.share.count(3)
    two.share.count(4, asked=True)
    assert (one.share.idle, two.share.idle) == (3, 0) and (budget.counted, budget.excused) == (22, 19)
    one.share.release(1, 15, asked=True)
    assert (one.share.counted, one.share.excused, budget.excused) == (3, 0, 4)
    two.share.close()
    assert (budget.counted, budget.excused) == (3, 0)


def test_a_connection_that_goes_takes_its_wishes_with_it(budget):
    gone, there = clients(budget, 2)
    gone.share.count(10)
    assert gone.share.ask(1, 20) and gone.share.ask(3, 1000) and not gone.share.ask(5, 1000) and not gone.share.ask(7, 20)
    assert not there.share.ask(1, 1000)
    gone.share.close()
    gone.share.close()
    assert there.told == [1] and gone.told == []
    assert budget.held == 0 and not budget.waiting
    there.share.close()
    assert Client(budget).share.ask(1, 1000)


def test_addresses_take_turns(budget):
    """However many connections one address has that wait: another's is next."""
    first, *many = (Client(budget, "greedy") for _ in range(5))
    assert first.share.ask(1, 1000)
    assert not any(client.share.ask(1, 1000) for client in many)
    other = Client(budget, "other")
    assert not other.share.ask(1, 1000)
    first.share.close()
    assert other.told == [1] and not any(client.told for client in many)
    other.share.close()
    assert many[0].told == [1]
