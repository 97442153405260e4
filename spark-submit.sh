#!/usr/bin/env bash
# The one entry: ./spark-submit.sh [spark options] JOB [options of the job and of spark-submit, in any order]
#
# The first start sets everything up (jobs/setup.py); later ones only compare two files. Options of spark-submit
# (--master, --conf, --name, --driver-memory, ...) are passed to it in any position, all others to the job, with it -c after JOB; all after
# `--` go to the job.
# The job is this process, and Spark's JVM its child (jobs/jvm.py); `ctl`, `pump` and `replay` need no Spark.
# Logs go to var/log/JOB.log (the job and every trace) and var/log/JOB.spark.log.
set -euo pipefail
export LC_ALL=C.UTF-8
# What is opened next would take the place of a stream that is closed.
[[ -e /dev/fd/0 ]] || exec </dev/null
[[ -e /dev/fd/1 ]] || exec >/dev/null
[[ -e /dev/fd/2 ]] || exec 2>/dev/null

root=$(cd -P "${BASH_SOURCE[0]%/*}" && pwd)
venv=$root/.venv

usage() {
  cat <<'USAGE'
usage: ./spark-submit.sh [spark options] JOB [options]

jobs:
  ctl         binlogctl's commands, and what a Drainer is doing (ctl status, ctl ddl, ctl findings; see ctl --help)
  demo        private MariaDB, two Pumps, a workload and the drainer: see it work (--seconds 60)
  drainer     the replication stream (--config conf/drainer.toml; with --check only what would hinder it)
  pump        a Pump server (--config conf/pump.toml)
  rehearse    a recorded case through Pumps and drainer (rehearse CASE [--to mysql://user:pw@host:port])
  replay      Reparo: what a file sink wrote, printed or applied (replay -data-dir DIR [-start-datetime T] [-stop-datetime T] [-dest-type mysql])
  setup       only set up what a job or the tests need (--java --mariadb --etcd --kafka --dev)

./spark-submit.sh JOB --help shows a job's own options, --version the version. Options of Spark's spark-submit are passed on; --master defaults to local[*].
USAGE
}

die() {
  echo "spark-submit.sh: $*" >&2
  exit 2
}

# The one of the names that is spelled most like the first word, if any is.
nearest() {
  local python
  for python in "$venv/bin/python" ${PYTHON:-} python3; do
    if command -v "$python" >/dev/null; then
      "$python" -c 'import difflib, sys; print(*difflib.get_close_matches(sys.argv[1], sys.argv[2:], 1))' "$@" 2>/dev/null || true
      return
    fi
  done
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
    printed=$({ apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends python3 python3-venv; } 2>&1) ||
      printf '%s\n' "$printed" >&2
    command -v python3 && return
  fi
  die "Python 3.11 or later is needed: install it (Debian: apt-get install python3 python3-venv) or name it with PYTHON=/path/to/python3"
}

same() { [[ -f $2 && "$(<"$1")" == "$(<"$2")" ]]; }

spark_args=() job_args=() job='' master='' jars='' py_files='' class_path=''
while (($#)); do
  option=$1 value=''
  if [[ $option == -c && -n $job ]]; then
    # After the job, -c is the Drainer's worker-count, no --conf.
    job_args+=("$option")
    shift
    continue
  fi
  case $option in
    --master | --deploy-mode | --name | --conf | -c | --jars | --packages | --exclude-packages | --repositories | --py-files | --files | \
      --archives | --properties-file | --driver-memory | --driver-java-options | --driver-library-path | --driver-class-path | \
      --executor-memory | --executor-cores | --driver-cores | --total-executor-cores | --num-executors | --queue | --proxy-user | \
      --principal | --keytab)
      (($# >= 2)) || die "$option needs a value"
      value=$2
      shift 2
      ;;
    --master=* | --deploy-mode=* | --name=* | --conf=* | --jars=* | --packages=* | --exclude-packages=* | --repositories=* | \
      --py-files=* | --files=* | --archives=* | --properties-file=* | --driver-memory=* | --driver-java-options=* | \
      --driver-library-path=* | --driver-class-path=* | --executor-memory=* | --executor-cores=* | --driver-cores=* | \
      --total-executor-cores=* | --num-executors=* | --queue=* | --proxy-user=* | --principal=* | --keytab=*)
      value=${option#*=} option=${option%%=*}
      shift
      ;;
    --verbose | --supervise)
      spark_args+=("$option")
      shift
      continue
      ;;
    --)
      shift
      job_args+=("$@")
      break
      ;;
    *)
      if [[ -n $job ]]; then
        job_args+=("$option")
      elif [[ $option == -h || $option == --help || $option == help ]]; then
        usage
        exit 0
      elif [[ $option == -V || $option == --version ]]; then
        sed -n 's/^VERSION = "\(.*\)"$/Release Version: \1/p' "$root/conf/version.py"
        exit 0
      elif [[ $option == -* ]]; then
        near=$(nearest "$option" --help --version --master --deploy-mode --name --conf --jars --packages --py-files --files --archives \
          --properties-file --driver-memory --executor-memory --executor-cores --total-executor-cores --num-executors --verbose)
        die "unknown option $option before the job; ${near:+did you mean $near? }./spark-submit.sh --help lists the jobs"
      else
        job=$option
      fi
      shift
      continue
      ;;
  esac
  case $option in
    --deploy-mode) [[ $value == client ]] || die "the job is Spark's driver and runs where it is started: --deploy-mode $value is not possible" ;;
    --master) master=$value ;;
    --jars) jars=$value ;;
    --py-files) py_files=$value ;;
    --driver-class-path) class_path=$value ;;
    *) spark_args+=("$option" "$value") ;;
  esac
done

if [[ -z $job ]]; then
  usage >&2
  exit 2
fi
if ! [[ $job =~ ^[a-z_]+$ && -f $root/jobs/$job.py ]] || ! grep -q '^def main(' "$root/jobs/$job.py"; then
  near=$(nearest "$job" ctl demo drainer pump rehearse replay setup)
  die "there is no job '$job'; ${near:+did you mean $near? }./spark-submit.sh --help lists them"
fi

if [[ $job == setup ]]; then
  python=$(find_python)
  exec "$python" "$root/jobs/setup.py" ${job_args[@]+"${job_args[@]}"}
fi

# What would hinder a stream is found without Spark.
if [[ $job == drainer && " ${job_args[*]-} " =~ \ --?check\  ]]; then
  job=preflight
fi

# Nothing is run: neither Java nor MariaDB has to be there.
only_words=''
for option in ${job_args[@]+"${job_args[@]}"}; do
  [[ $option != -h && $option != -help && $option != --help && $option != -V && $option != -version && $option != --version ]] || only_words=1
done

needs=()
case $only_words$job in
  1* | ctl | preflight | pump | replay) ;;
  demo | rehearse)
    needs=(--java)
    # With --to, no private MariaDB is needed.
    [[ " ${job_args[*]-} " == *" --to"[=\ ]* ]] || needs+=(--mariadb)
    ;;
  *) needs=(--java) ;;
esac

ready() {
  same "$root/requirements.txt" "$venv/.requirements.txt" || return 1
  [[ " ${needs[*]-} " != *' --java '* || (-f $venv/spark-jars/.complete && (-n ${JAVA_HOME:-} || -n $(command -v java))) ]] || return 1
  [[ " ${needs[*]-} " != *' --mariadb '* || -x /usr/sbin/mariadbd || -n $(command -v mariadbd) ]] || return 1
}
if ! ready; then
  python=$(find_python)
  "$python" "$root/jobs/setup.py" "${needs[@]}"
fi

export TIDB_BINLOG_LOG=${TIDB_BINLOG_LOG:-$root/var/log/$job.log}
mkdir -p "${TIDB_BINLOG_LOG%/*}"
# Modules are imported from the project, not from the directory of the script that Python runs (jobs/).
export PYTHONSAFEPATH=1 PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
# A fault point must kill the whole application (conf/failpoints.py), which is this process after exec.
[[ -z ${TIDB_BINLOG_DIE:-} ]] || export TIDB_BINLOG_DIE_PID=${TIDB_BINLOG_DIE_PID:-$$}

if [[ -n $only_words || $job == ctl || $job == preflight || $job == pump || $job == replay ]]; then
  exec "$venv/bin/python" -m pyspark_tidb_binlog.jobs.launch "$job" ${job_args[@]+"${job_args[@]}"}
fi

master=${master:-${MASTER:-local[*]}}
# Makes the JVM and Python workers return memory after a big batch (jobs/spark_session.py, jobs/allocator.py).
export ARROW_DEFAULT_MEMORY_POOL=${ARROW_DEFAULT_MEMORY_POOL:-system}
export MALLOC_ARENA_MAX=${MALLOC_ARENA_MAX:-2} MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-131072}
export SPARK_HOME
SPARK_HOME=$(echo "$venv"/lib/python3*/site-packages/pyspark)
delta_jars=$(printf ',%s' "$venv"/spark-jars/*.jar)
jvm="-Dlog4j2.configurationFile=file:$root/conf/log4j2.properties -Xlog:disable -Xlog:all=error:stderr"
[[ ! -f $venv/spark-jars/spark.jsa ]] || jvm+=" -XX:SharedArchiveFile=$venv/spark-jars/spark.jsa"
if [[ $master == local* && $master != local-cluster* ]]; then
  # Driver and executors are one JVM and see this checkout: nothing to copy, nothing to ship.
  export PYSPARK_PYTHON=$venv/bin/python
  # Ours first: the JVM's class archive matches only a class path that begins with them.
  delta_jars=${delta_jars#,}
  class_path=${delta_jars//,/:}${class_path:+:$class_path}
  # The JVM accepts only one garbage collector: the caller's wins.
  [[ "${SPARK_SUBMIT_OPTS:-} ${spark_args[*]-}" == *-XX:+Use*GC* ]] || jvm="$(<"$root/conf/jvm.options") $jvm"
else
  # The executors of a local-cluster are on this machine; those of other clusters have their own Python.
  [[ $master != local-cluster* ]] || export PYSPARK_PYTHON=${PYSPARK_PYTHON:-$venv/bin/python}
  zip=$root/var/py-files/tidb_binlog_spark.zip
  "$venv/bin/python" "$root/jobs/setup.py" --zip "$zip"
  py_files=$zip${py_files:+,$py_files}
  jars=${delta_jars#,}${jars:+,$jars}
fi
[[ -z $class_path ]] || spark_args+=(--driver-class-path "$class_path")
[[ -z $jars ]] || spark_args+=(--jars "$jars")
[[ -z $py_files ]] || spark_args+=(--py-files "$py_files")

export SPARK_SUBMIT_OPTS="$jvm${SPARK_SUBMIT_OPTS:+ $SPARK_SUBMIT_OPTS}"
# Strings hash alike in driver and workers, as spark-submit sets it.
export PYTHONHASHSEED=0
exec "$venv/bin/python" -m pyspark_tidb_binlog.jobs.launch --master "$master" --name "tidb-binlog $job" --conf spark.python.daemon.module=pyspark_tidb_binlog.jobs.workers --conf spark.ui.showConsoleProgress=false \
  ${spark_args[@]+"${spark_args[@]}"} -- "$job" ${job_args[@]+"${job_args[@]}"}
