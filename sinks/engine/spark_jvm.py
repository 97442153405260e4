"""The insides of PySpark, Spark and Delta that ``sinks`` uses and no public API promises. To port ``sinks`` to another Spark, read this file. [spark]

Promises: no other file of ``sinks`` names these insides (``tests/test_layout.py``). Each docstring names the part, as of Spark 4.2.1 and Delta
4.4.0. The insides that ``jobs`` uses are in ``jobs/spark/pyspark_insides.py``.
"""

from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

SPARK_FAULTS = (PySparkException, Py4JError, OSError, AttributeError, AssertionError)
"""What a call of Spark raises; ``OSError``: the JVM died, the last two: the session was stopped."""

_CHANGING_PLANS = ("CURRENT_LIKE", "PLAN_EXPRESSION")


def jvm_of(spark: SparkSession) -> Any:
    """The driver's JVM as Py4J shows it, for public classes of Java: ``SparkSession._jvm``."""
    return spark._jvm


def has_ended(spark: SparkSession) -> bool:
    """Whether Spark was stopped, or its JVM died: ``SparkContext._jsc``."""
    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())
    except SPARK_FAULTS:
        return True


def may_change(spark: SparkSession, frame: DataFrame) -> bool:
    """Whether the same rows may give another answer: Catalyst knows it of every function, under whatever name and quotes.

    ``DataFrame._jdf``, ``QueryExecution.analyzed``, ``LogicalPlan.deterministic`` and ``containsPattern``. Of the ``TreePattern``s, ``CURRENT_LIKE`` is
    what depends on the time, the user or the session, and ``PLAN_EXPRESSION`` a subquery.
    """
    plan = frame._jdf.queryExecution().analyzed()
    patterns = jvm_of(spark).org.apache.spark.sql.catalyst.trees.TreePattern
    return not plan.deterministic() or any(plan.containsPattern(getattr(patterns, name)()) for name in _CHANGING_PLANS)
