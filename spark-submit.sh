#!/usr/bin/env bash
# The one entry of a checkout: ./spark-submit.sh [spark options] JOB [options of the job and of spark-submit, in any order]
#
# The first start sets everything up (jobs/setup.py); later ones only compare two files. All else is the command's (jobs/command.py), which the
# wheel installs as `tidb-binlog`.
set -euo pipefail

root=$(cd -P "${BASH_SOURCE[0]%/*}" && pwd)
venv=$root/.venv
# Modules are imported from the project, not from the working directory.
export PYTHONSAFEPATH=1 PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}

die() {
  echo "spark-submit.sh: $*" >&2
  exit 2
}

# The code needs Python 3.11 or later; python3.11 comes first, so that a newer default is not preferred to the tested version.
find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  if [[ $EUID == 0 && -z ${TIDB_BINLOG_NO_APT:-} ]] && command -v apt-get >/dev/null; then
    echo "setup: no Python 3.11 or later was found: apt-get install python3 python3-venv" >&2
    local printed
    printed=$("$root/jobs/apt-install" python3 python3-venv 2>&1) || printf '%s\n' "$printed" >&2
    command -v python3 && return
  fi
  die "Python 3.11 or later is needed: install it (Debian: apt-get install python3 python3-venv) or name it with PYTHON=/path/to/python3"
}

same() { [[ -f $2 && "$(<"$1")" == "$(<"$2")" ]]; }

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
    python=$(find_python)
    exec "$python" -m pyspark_tidb_binlog.jobs.setup "${words[@]:at+1}"
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

ready() {
  same "$root/requirements.txt" "$venv/.requirements.txt" || return 1
  [[ " ${needs[*]-} " != *' --java '* || (-f $venv/spark-jars/.complete && (-n ${JAVA_HOME:-} || -n $(command -v java))) ]] || return 1
  [[ " ${needs[*]-} " != *' --mariadb '* || -x /usr/sbin/mariadbd || -n $(command -v mariadbd) ]] || return 1
}
if ! ready; then
  python=$(find_python)
  "$python" -m pyspark_tidb_binlog.jobs.setup ${needs[@]+"${needs[@]}"}
fi
exec "$venv/bin/python" -m pyspark_tidb_binlog.jobs.command "$@"
