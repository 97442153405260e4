#!/usr/bin/env bash
# The one entry of a checkout: ./spark-submit.sh [spark options] JOB [options of the job and of spark-submit, in any order]
#
# The first start sets everything up (jobs/setup.sh); later ones only compare two files. All else is the command's (jobs/command.py), which the
# wheel installs as `tidb-binlog`.
set -euo pipefail

. "${BASH_SOURCE[0]%/*}/jobs/setup.sh"
# Modules are imported from the project, not from the working directory.
export PYTHONSAFEPATH=1 PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}

# What the job needs on this machine. Before the job stand only options of spark-submit, most with a value.
job='' words=("$@")
for ((at = 0; at < ${#words[@]}; at++)); do
  case ${words[at]} in
    -h | --help | -V | --version) break ;;
    --verbose | --supervise | -*=*) ;;
    -*) at=$((at + 1)) ;;
    *)
      job=${words[at]}
      break
      ;;
  esac
done
needs=()
case $job in
  ctl | docs | pump | replay) ;;
  drainer)
    # What would hinder a stream is found without Spark.
    [[ " $* " =~ \ --?check\  ]] || needs=(--java)
    ;;
  demo | rehearse)
    needs=(--java)
    # With --to, no private MariaDB is needed.
    [[ " $* " == *" --to"[=\ ]* ]] || needs+=(--mariadb)
    ;;
  playground)
    # Spark is for the lines that it prints.
    needs=(--java)
    [[ ! " $* " =~ \ --?target[=\ ] ]] || needs+=(--mariadb)
    ;;
  lake) needs=(--java) ;;
  setup)
    set_up "${words[@]:at+1}"
    exit
    ;;
  *)
    # Nothing that needs packages: the jobs are listed, or something is refused.
    python=$venv/bin/python
    [[ -x $python ]] || python=$(find_python)
    exec "$python" -m pyspark_tidb_binlog.jobs.command "$@"
    ;;
esac

# Nothing is run: neither Java nor MariaDB has to be there.
[[ ! " $* " =~ \ (-h|-V|--?help|--?version)\  ]] || needs=()

ready ${needs[@]+"${needs[@]}"} || set_up ${needs[@]+"${needs[@]}"}
exec "$venv/bin/python" -m pyspark_tidb_binlog.jobs.command "$@"
