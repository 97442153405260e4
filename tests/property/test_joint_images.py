"""Tables decoded together against the same tables decoded alone: any tables, any rows, any damage."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from pyspark_tidb_binlog.jobs.lab.emulator import row_encoder
from pyspark_tidb_binlog.schemas import decoder
from pyspark_tidb_binlog.schemas.changes import change_rows
from pyspark_tidb_binlog.schemas.changes.joint_images import TableImages, joint_images
from pyspark_tidb_binlog.schemas.changes.row_choice import RowsOfTable
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.tableinfo import WHOLE_COLUMN, ColumnInfo, ColumnType
from tests.property.test_decoder_equivalence import damaged_events
from tests.support.drawn_rows import Events, at, column, events, table
from tests.support.examples import examples

SLOW_DRAWS = [HealthCheck.too_slow, HealthCheck.data_too_large]


def groups_of(drawn: list[Events]) -> list[RowsOfTable]:
    return [RowsOfTable(one.table, np.arange(len(one.ops)), one.ops, one.versions, one.rows) for one in drawn if len(one.ops)]


def alone(group: RowsOfTable) -> TableImages:
    return change_rows._images_of(group)


def outcome(what: Callable[[], TableImages]) -> TableImages | str:
    try:
        return what()
    except (Corruption, pa.ArrowInvalid) as error:
        return str(error)


def assert_same(found: TableImages, wanted: TableImages) -> None:
    assert found.keys.equals(wanted.keys)
    assert found.events.tolist() == wanted.events.tolist()
    assert found.halves.tolist() == wanted.halves.tolist()
    assert [field.name for field in found.fields] == [field.name for field in wanted.fields]
    for one, other in zip(found.fields, wanted.fields, strict=True):
        assert one.is_json == other.is_json
        if one.is_json:
            assert one.texts().equals(other.texts())
        else:
            values = one.values()
            assert values is not None
            values.validate(full=True)
            assert values.equals(other.values())


@examples(150, suppress_health_check=SLOW_DRAWS)
@given(st.lists(events(max_rows=4), min_size=2, max_size=4))
def test_good_rows_of_many_tables_are_decoded_together(drawn: list[Events]) -> None:
    groups = groups_of(drawn)
    for group, found in zip(groups, joint_images(groups), strict=True):
        if found is not None:
            assert_same(found, alone(group))


@examples(200, suppress_health_check=SLOW_DRAWS)
@given(st.lists(damaged_events() | events(max_rows=3), min_size=2, max_size=3))
def test_damage_in_one_table_changes_nothing_in_the_others(drawn: list[Events]) -> None:
    groups = groups_of(drawn)
    for group, found in zip(groups, joint_images(groups), strict=True):
        wanted = outcome(lambda group=group: alone(group))
        if isinstance(wanted, str):
            assert found is None
        elif found is not None:
            assert_same(found, wanted)


@pytest.mark.parametrize("rows", [1, decoder.CHUNK])
def test_few_rows_are_decoded_together_and_many_alone(rows: int) -> None:
    info = at(table((column(1, 8, 3),), pk_is_handle=True))
    row = pa.array([b"\x08\x02\x08\x02"] * rows, pa.binary())
    group = RowsOfTable(info, np.arange(rows), np.full(rows, int(Op.DELETE), np.int32), np.full(rows, 10), row)
    found = joint_images([group, group])
    if rows == 1:
        for one in found:
            assert one is not None
            assert_same(one, alone(group))
    else:
        assert found == [None, None]


def of_table(columns: tuple[ColumnInfo, ...], ops: list[Op], rows: list[bytes]) -> RowsOfTable:
    kinds = np.array(ops, np.int32)
    return RowsOfTable(
        at(table(columns, pk_is_handle=True)), np.arange(len(ops)), kinds, np.full(len(ops), 10), pa.array(rows, pa.binary())
    )


@pytest.mark.parametrize("number", [2, 1 << 31, 1 << 32, 1 << 34, (1 << 63) - 1])
def test_a_column_is_told_apart_whatever_its_id(number: int) -> None:
    columns = (column(1, 8, 3), replace(column(2, 8), id=number))
    info, row = table(columns, pk_is_handle=True), {1: 4, number: 5}
    group = of_table(columns, [Op.INSERT, Op.DELETE], [row_encoder.encode_insert(info, row, 0), row_encoder.encode_delete(info, row, 0)])
    for found in joint_images([of_table(columns[:1], [Op.DELETE], [b"\x08\x02\x08\x02"]), group, group])[1:]:
        assert found is not None
        assert_same(found, alone(group))


def test_a_table_may_have_nothing_but_a_key_that_images_lack() -> None:
    """Then it has more images than cells."""
    key = column(1, 8, 3, generated_expr="1", generated_stored=True)
    pairs = b"\x08\x02\x08\x02"
    group = of_table((key,), [*[Op.UPDATE] * 20, Op.INSERT], [*[pairs * 2] * 20, b"\x08\x02" + pairs])
    for found in joint_images([group, of_table((column(1, 8, 3),), [Op.DELETE], [pairs])])[:1]:
        assert found is not None
        assert_same(found, alone(group))


@pytest.mark.parametrize(("row", "good"), [(b"\x02\x0aabcde\x00", True), (b"", False)])
def test_rows_may_have_no_pair(row: bytes, good: bool) -> None:
    """As an insert of a clustered BINARY key alone, whose bytes have none that may begin a pair; or an empty row, which is damage."""
    info = table((column(1, ColumnType.STRING, 3, flen=5),), ((0, WHOLE_COLUMN),))
    group = RowsOfTable(at(info), np.arange(1), np.array([Op.INSERT], np.int32), np.array([10]), pa.array([row], pa.binary()))
    for found in joint_images([group, group]):
        assert (found is not None) == good
        if found is not None:
            assert_same(found, alone(group))


@pytest.mark.parametrize(("tp", "cut"), [(ColumnType.DECIMAL, b"\x06\xff\x00\x80"), (ColumnType.VARCHAR, b"\x02\xa0\x1fab")])
def test_a_datum_that_ends_behind_its_row_is_left_to_the_decoder_of_one_table(tp: int, cut: bytes) -> None:
    """Also where nothing follows the row."""
    good = of_table((column(1, 8, 3),), [Op.DELETE], [b"\x08\x02\x08\x02"])
    bad = of_table((column(1, 8, 3), column(2, tp, flen=20, decimal=2)), [Op.DELETE], [b"\x08\x02\x08\x02\x08\x04" + cut])
    found, left = joint_images([good, bad])
    assert left is None
    assert found is not None
    assert_same(found, alone(good))
