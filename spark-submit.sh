#!/usr/bin/env bash
# The one entry of a checkout: ./spark-submit.sh [spark options] JOB [options of the job and of spark-submit, in any order]
#
# All is the command's (jobs/command.py), which the wheel installs as `tidb-binlog`. In a checkout it has jobs/setup.sh install what a job lacks.
set -euo pipefail

. "${BASH_SOURCE[0]%/*}/jobs/setup.sh"
# Modules are imported from the project, not from the working directory.
export PYTHONSAFEPATH=1 PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}

if [[ ${1-} == setup ]]; then
  set_up "${@:2}"
  exit
fi
python=$venv/bin/python
[[ -x $python ]] || python=$(find_python)
exec "$python" -m pyspark_tidb_binlog.jobs.command "$@"
