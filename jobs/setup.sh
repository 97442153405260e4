# shellcheck shell=bash
# Sets a checkout up: Java, MariaDB, etcd, a browser, the virtual environment, pinned packages, the jars that Spark lacks. spark-submit.sh reads this file.
#
# Promises: installs only what is missing, so a second run is quick. Prints each step, and the exact packages where it may not install them itself:
# apt runs for root on Debian and its derivatives only, unless TIDB_BINLOG_NO_APT is set. Ctrl-C ends it; apt, which must not be killed, is waited for.
#
# The stamps .venv/.requirements* are copies of the requirements files that are installed.

root=$(cd -P "${BASH_SOURCE[0]%/*}/.." && pwd)
venv=$root/.venv
java_needed=17
flags='--java --mariadb --etcd --kafka --browser --dev'

# set_up [FLAG...]: the virtual environment, and what the flags name; ends the shell where that is not possible.
set_up() {
  local flag
  for flag in "$@"; do
    case $flag in
      -h | --help)
        echo "usage: spark-submit.sh setup [$flags]: what a job (--java, --mariadb) or the tests need, as far as it is missing"
        exit 0
        ;;
      -V | --version)
        echo "Release Version: $(sed -n 's/^VERSION = "\(.*\)"/\1/p' "$root/conf/version.py")"
        exit 0
        ;;
      *) [[ " $flags " == *" $flag "* ]] || refuse 2 "unknown flag $flag; the flags are $flags" ;;
    esac
  done
  trap 'say stopped; exit 130' INT
  local needs=" $* "
  if [[ $needs =~ ' --java '|' --kafka ' ]]; then need_java; fi
  if [[ $needs == *' --mariadb '* ]]; then need "MariaDB's server" mariadbd mariadb-server; fi
  if [[ $needs == *' --etcd '* ]]; then need etcd etcd etcd-server; fi
  if [[ $needs == *' --browser '* ]]; then need Chromium chromedriver chromium chromium-driver; fi
  need_packages requirements.txt --no-deps # it is complete, and overrides what its packages require of each other
  if [[ $needs == *' --dev '* ]]; then need_packages requirements-dev.txt; fi
  if [[ $needs == *' --java '* ]]; then
    prepare fetched_jars spark-jars
    prepare class_archive
  fi
  if [[ $needs == *' --kafka '* ]]; then prepare fetched_jars kafka-jars; fi
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
  install 'no Python 3.11 or later was found (PYTHON=/path/to/python3 names one)' python3 python3-venv
  command -v python3
}

need_java() {
  local release state='no Java was found'
  release=$(java_release)
  ((${release:-0} < java_needed)) || return 0
  [[ -z $release ]] || state="Java $release is too old"
  # whatever is installed, Spark runs that one
  [[ -z ${JAVA_HOME:-} ]] || refuse 1 "$state in JAVA_HOME ($JAVA_HOME); Spark needs Java $java_needed or later: unset it, or set it to that Java"
  install "$state; Spark needs Java $java_needed or later" "openjdk-$java_needed-jre-headless"
  release=$(java_release)
  ((${release:-0} >= java_needed)) || refuse 1 "Java $java_needed is installed but another one is on PATH: set JAVA_HOME"
}

# The feature release of the Java that Spark would run: 17 of `openjdk version "17.0.15"`, 8 of `java version "1.8.0"`; empty if there is none.
java_release() {
  { "${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1 || true; } | sed -nE 's/.*version "(1\.)?([0-9]+).*/\2/p'
}

# need NAME PROGRAM PACKAGE...: instances of their own are started from these programs, never the system's service.
need() { [[ -n $(found "$2") ]] || install "$1 was not found" "${@:3}"; }

found() { PATH=$PATH:/usr/sbin:/usr/local/sbin command -v "$1" || true; }

# need_packages FILE [PIP'S OPTION...]: what it lists is in the virtual environment, whose Python finds the project's code from any directory.
need_packages() {
  local python site version
  if [[ ! -x $venv/bin/python ]]; then
    say "making the virtual environment $venv"
    python=$(find_python)
    if ! "$python" -m venv "$venv" >/dev/null 2>&1; then
      rm -rf "$venv"
      version=$("$python" -c 'import sys; print("{}.{}".format(*sys.version_info))')
      install "Python $version cannot make a virtual environment" "python$version-venv"
      step 'making the virtual environment' "$python" -m venv "$venv"
    fi
  fi
  for site in "$venv"/lib/python3*/site-packages; do
    # relative, so that a copy of the environment in another checkout finds the code of that checkout
    echo ../../../.. >"$site/tidb_binlog_checkout.pth"
  done
  if ! same "$1"; then
    say "installing the packages of $1 (the first time this takes a few minutes)"
    step "installing $1" "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${@:2}" -r "$root/$1"
    cp "$root/$1" "$venv/.$1"
  fi
}

same() { [[ -f $venv/.$1 && "$(<"$root/$1")" == "$(<"$venv/.$1")" ]]; }

prepare() { PYTHONSAFEPATH=1 PYTHONPATH=$root "$venv/bin/python" -m "pyspark_tidb_binlog.jobs.spark.$1" "${@:2}"; }

# install WHY PACKAGE...: system packages, where that is allowed.
install() {
  local command="apt-get install --no-install-recommends ${*:2}"
  command -v apt-get >/dev/null || refuse 1 "$1: install what Debian calls ${*:2} and start again"
  [[ $EUID == 0 && -z ${TIDB_BINLOG_NO_APT:-} ]] || refuse 1 "$1: run \`$command\` as root and start again"
  say "$1: $command"
  step "$command" "$root/jobs/apt-install" "${@:2}"
}

# step WHAT COMMAND...: its output is shown only if it fails.
step() {
  local printed code=0
  printed=$(mktemp)
  "${@:2}" >"$printed" 2>&1 || code=$?
  ((code == 0)) || say "$1 failed (exit code $code); it printed:"$'\n'"$(tail -c 3000 "$printed")"
  rm -f "$printed"
  ((code == 0)) || exit 1
}

refuse() {
  say "$2"
  exit "$1"
}

say() { echo "setup: $*" >&2; }
