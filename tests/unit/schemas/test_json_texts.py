"""JSON documents as texts and as VARIANT: the same values, and Spark's own VARIANT of the texts is that of the ledger."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tidb_binlog.schemas.changes.json_texts import documents_as
from pyspark_tidb_binlog.schemas.changes.variant_values import STORED_VARIANT

NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(), lambda one: st.lists(one, max_size=4) | st.dictionaries(st.text(), one, max_size=4)
)


def as_texts(*documents: Any) -> list[Any]:
    """Through VARIANT, twice."""
    variants = documents_as(pa.array([json.dumps(one) for one in documents], pa.string()), STORED_VARIANT)
    texts = documents_as(variants, pa.string())
    assert documents_as(texts, STORED_VARIANT).equals(variants)
    found: list[Any] = texts.to_pylist()
    return found


@given(st.lists(DOCUMENTS, max_size=5))
def test_documents_are_the_same_in_both_forms(documents: list[Any]) -> None:
    """Also whether a number is an integer."""
    assert [repr(json.loads(text)) for text in as_texts(*documents)] == [repr(in_order(one)) for one in documents]


def in_order(value: Any) -> Any:
    match value:
        case dict():
            return {key: in_order(value[key]) for key in sorted(value, key=lambda key: key.encode("utf-16-be", "surrogatepass"))}
        case list():
            return [in_order(part) for part in value]
        case _:
            return value


@pytest.mark.parametrize(
    ("value", "text"), [(1, "1"), (1.0, "1.0e0"), (1e22, "1e+22"), (2**64 - 1, "18446744073709551615"), (None, "null")]
)
def test_a_number_with_an_exponent_is_a_double(value: Any, text: str) -> None:
    assert as_texts(value) == [text]


def test_null_is_no_document() -> None:
    assert documents_as(documents_as(pa.array([None, "null"], pa.string()), STORED_VARIANT), pa.string()).to_pylist() == [None, "null"]
