"""The source ``tidb_binlog`` where it cannot run: another Spark, a missing package. Spark shell.

Promises: Spark finds the name, and every use of it is one error that says what is missing. Needs only PySpark's ``DataSource``.
"""

from importlib import import_module
from typing import NoReturn

import pyspark
from pyspark.sql.datasource import DataSource

from pyspark_tidb_binlog.conf.entry import document
from pyspark_tidb_binlog.schemas.errors import ConfigError


class RefusedSource(DataSource):
    """``format("tidb_binlog")``, which refuses."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "tidb_binlog"

    def schema(self) -> NoReturn:
        """Raise ConfigError: why the source cannot be used."""
        raise ConfigError(reason())


def reason() -> str:
    """What keeps the source from being imported."""
    try:
        import_module("pyspark_tidb_binlog.binlog_source.spark_format")
    except ImportError as error:
        return (
            f"the source tidb_binlog cannot be used with Spark {pyspark.__version__} and the Python packages of its workers: {error}. "
            f"The source needs Spark 4.2 and the packages that the wheel requires ({document('supported')})"
        )
    return "Spark could not load the source tidb_binlog when the session began: start the session again"
