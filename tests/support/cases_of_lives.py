"""Read once by the fork server of ``lake_lives``, so that no life has to read its case again."""

from tests.support.golden_messages import case_steps

for case in ("txn", "bank", "ddl"):
    case_steps(case)
