"""A lake in an object store is read by Spark through Hadoop's S3A, with the jars that docs/lake.md names."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.integration.test_lake_store import bucket, live
from tests.support.mirror_rows import totals

__all__ = ["bucket"]
ROOT = Path(__file__).parents[2]
READ = """
print("tables", sorted(row["table"] for row in lake.tables().collect()))
print("rows", lake.table("g_bank.savings").count(), lake.changes("g_bank.savings").count())
"""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.grpc
def test_spark_reads_it_with_the_lines_of_the_page(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run fetches the jars, 15 MB. The secret is in no output."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret := "not-to-be-seen")
    lake = f"{bucket}/for-spark"
    live(lake, "bank")
    section = (ROOT / "docs/lake.md").read_text().partition("through S3A")[2].partition("\n#")[0]
    lines = textwrap.dedent("".join(re.findall(r"^    .*\n", section, re.M)))
    program = lines.replace("s3://bucket/lake", lake).replace("https://s3.eu-central-1.amazonaws.com", os.environ["AWS_ENDPOINT_URL"])
    done = subprocess.run([sys.executable, "-c", program + READ], capture_output=True, text=True, check=False, timeout=600, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "tables ['checking', 'savings']" in done.stdout
    assert re.search(r"^rows [1-9]\d* [1-9]\d*$", done.stdout, re.M), done.stdout
    assert totals(lake) and secret not in done.stdout + done.stderr
