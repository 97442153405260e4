"""The figures of the page over time: bounded, whole minutes, busiest tables."""

from pyspark_tidb_binlog.jobs.stream.page_history import MINUTES, SECONDS, BusyTable, PageHistory, Sample

BEGAN = 1_790_000_040.5
"""Half a second past a minute."""


def looked(seconds: int, rows: int = 10) -> PageHistory:
    """A history after so many seconds, of ``rows`` row events and a transaction each."""
    history = PageHistory(BEGAN)
    for n in range(seconds):
        history.look(BEGAN + n, n / 10, n * rows, n)
    return history


def test_counts_become_rates_of_each_second() -> None:
    first, second, third = looked(3).seconds()
    assert first == Sample(1_790_000_040, 0.0, 0.0, 0.0), "what was before it is not known"
    assert (second, third) == (Sample(1_790_000_041, 0.1, 10.0, 1.0), Sample(1_790_000_042, 0.2, 10.0, 1.0))


def test_a_late_look_is_a_gap_and_a_rate_over_the_time_that_passed() -> None:
    history = looked(2)
    history.look(BEGAN + 11, 5.0, 110, 51)
    assert history.seconds(1_790_000_041) == [Sample(1_790_000_051, 5.0, 10.0, 5.0)]


def test_a_gap_counts_as_long_as_it_lasted() -> None:
    history = looked(30, rows=1_000)  # 1,000 rows a second up to the 29th
    history.look(BEGAN + 59, 0.1, 29_000, 29)  # nothing for thirty seconds
    assert history.rates() == (230.769, 0.231)
    history.look(BEGAN + 60, 0.1, 29_000, 29)
    assert history.minutes() == [Sample(1_790_000_100, 2.9, 491.525, 0.492)]
    history.look(BEGAN + 61, 0.1, 30_000, 29)
    history.look(BEGAN + 120, 0.1, 30_000, 29)
    assert history.minutes(1_790_000_100) == [Sample(1_790_000_160, 0.1, 500.0, 0.0)], "of the two seconds that it was looked at"


def test_two_looks_in_a_second_lose_no_rows() -> None:
    history = looked(2)
    history.look(BEGAN + 1.2, 0.1, 30, 3)
    history.look(BEGAN + 2, 0.1, 30, 3)
    assert [sample.rows for sample in history.seconds()] == [0.0, 10.0, 20.0]


def test_a_minute_is_given_to_who_asks_behind_its_last_second() -> None:
    history, at = PageHistory(BEGAN), 1_790_000_040
    asked: list[Sample] = []
    for n in range(200):
        history.look(BEGAN + n, float(n % 60), n * 6, n)
        asked += history.minutes(at)
        at = history.seconds()[-1].at
    assert asked == history.minutes() and [sample.at % 60 for sample in asked] == [0] * len(asked)
    assert len(asked) == 3 and asked[1].rows == 6.0 and asked[1].lag == 59.0


def test_figures_have_the_digits_that_are_read() -> None:
    history = PageHistory(BEGAN)
    for n in range(61):
        history.look(BEGAN + n * 1.003, n / 7, n * 7, n)
    assert history.seconds()[1] == Sample(1_790_000_041, 0.143, 6.979, 0.997)
    assert all(round(figure, 3) == figure for sample in (*history.seconds(), *history.minutes()) for figure in sample[2:])


def test_memory_is_bounded() -> None:
    history = looked(SECONDS + 100)
    assert len(history.seconds()) == SECONDS and len(history.seconds(history.seconds()[-1].at)) == 0
    for minute in range(70):
        history.count(BEGAN + 60 * minute, {f"d.t{minute}_{n}": n for n in range(3_000)})
    assert len(history.busiest(BEGAN + 60 * 69, 100_000)) <= 7_000, "each look adds them up, while a batch may wait to be counted"
    assert history.busiest(BEGAN + 60 * 69, 2) == [BusyTable("d.t65_2999", 2_999, 2_999), BusyTable("d.t66_2999", 2_999, 2_999)]
    day = PageHistory(BEGAN)
    for minute in range(MINUTES + 5):
        day.look(BEGAN + 60 * minute, None, 0, 0)
    assert len(day.minutes()) == MINUTES and day.minutes()[-1].lag is None


def test_the_busiest_tables_are_those_of_the_last_minutes() -> None:
    history = PageHistory(BEGAN)
    history.count(BEGAN, {"d.before": 1_000, "d.always": 1})
    history.count(BEGAN + 600, {"d.now": 5, "d.always": 2})
    history.count(BEGAN + 660, {"d.now": 5})
    assert history.busiest(BEGAN + 660, 3) == [BusyTable("d.now", 10, 10), BusyTable("d.always", 2, 3), BusyTable("d.before", 0, 1_000)]
    assert history.busiest(BEGAN + 3_700, 3)[0].name == "d.now", "an hour later the first minute is gone"
    assert [table.name for table in history.busiest(BEGAN + 3_700, 3)] == ["d.now", "d.always"]


def test_a_clock_that_is_set_back_begins_the_history_anew() -> None:
    history = looked(100)
    history.look(BEGAN - 3_600, 0.5, 5_000, 50)
    assert history.began == BEGAN - 3_600 and history.seconds() == [Sample(1_789_996_440, 0.5, 0.0, 0.0)]
    history.look(BEGAN - 3_599, 0.5, 5_007, 50)
    assert history.seconds()[-1].rows == 7.0


def test_the_rate_is_of_the_last_ten_seconds() -> None:
    history = looked(100)
    assert history.rates() == (10.0, 1.0) and PageHistory(BEGAN).rates() == (0.0, 0.0)
