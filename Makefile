# The contributor's commands: `make help` lists the targets. Each sets up what it needs.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv/bin
PYTEST := $(VENV)/python -m pytest -q
GOLDEN ?= tests/golden
GATE_CASE := "tests/integration/test_rehearse_golden.py::test_raw_with_straddling_pairs[txn]"
CASES := types keys ddl txn beyond_mysql reports bank online bench
DELIVERIES := sorted raw
# Line by line: TiDB's client to the Pump; gRPC; a real Pump's records; the Pump to a Drainer; a Pump to our source (two); PD and etcd; binlogctl.
WIRE := $(addprefix tests/, \
  integration/test_pump_client.py unit/binlog_source/test_pump_client_*.py \
  integration/rpc unit/binlog_source/test_rpc_*.py property/test_http2_*.py integration/test_tls_front.py \
  unit/binlog_source/test_pump_record.py unit/binlog_source/test_pump_format.py unit/binlog_source/test_pump_vlog.py \
  integration/test_pump_server.py integration/test_pump_http.py integration/test_notify.py integration/test_fakes_of_drainers.py \
  integration/test_source_client.py integration/test_source_tails.py integration/test_source_silent.py integration/test_source_compressed.py \
  integration/test_tls_client.py unit/binlog_source/test_framing.py integration/test_upstream.py unit/schemas/test_decoder.py \
  contract/test_pd.py contract/test_registry.py contract/test_tidb_servers.py contract/test_cluster.py integration/test_tls_cluster.py \
  contract/test_ctl.py integration/test_drainer_pages.py)
MYSQLD = $(abspath $(or $(TIDB_BINLOG_TEST_MYSQLD),$(shell command -v mysqld)))
LINTED := jobs binlog_source sinks schemas conf tests benchmarks notebooks pyspark_tidb_binlog/__init__.py setup.py

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z_-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## virtual environment, packages, Java, MariaDB, etcd, Delta's jars: whatever is missing
	@./spark-submit.sh setup --java --mariadb --etcd --kafka --dev

.PHONY: setup-dev
setup-dev:
	@./spark-submit.sh setup --dev

.PHONY: setup-etcd
setup-etcd:
	@./spark-submit.sh setup --etcd --dev

.PHONY: setup-browser
setup-browser: setup
	@./spark-submit.sh setup --browser --dev

.PHONY: lint
lint: setup-dev ## formatting and lint (ruff; hadolint for the Containerfile)
	$(VENV)/ruff format --check $(LINTED)
	$(VENV)/ruff check $(LINTED)
	$(VENV)/hadolint deploy/Containerfile

.PHONY: format
format: setup-dev ## fix the formatting
	$(VENV)/ruff check --fix --select I $(LINTED)
	$(VENV)/ruff format $(LINTED)

.PHONY: type
type: setup-dev ## types (mypy strict)
	$(VENV)/mypy

.PHONY: imports
imports: setup-dev ## direction of imports (import-linter)
	$(VENV)/lint-imports --config setup.cfg

.PHONY: settings
settings: setup-dev ## docs/settings.md and conf/*.toml from the model of the settings
	$(VENV)/python -m pyspark_tidb_binlog.conf.reference

.PHONY: parity
parity: setup-dev ## docs/parity.md from the markers of the tests and tests/parity.toml
	$(VENV)/python -m tests.support.parity_page

.PHONY: engines
engines: setup-dev ## docs/engines.md from tests/support/engines.py
	$(VENV)/python -m tests.support.engines

.PHONY: monitoring
monitoring: setup-dev ## deploy/: the Grafana dashboard and the alert rules, from the metrics and the table of alarms
	$(VENV)/python -m tests.support.monitoring_files

.PHONY: notebook
notebook: setup-dev ## notebooks/replicate.ipynb, as Jupyter opens it, from notebooks/replicate.py
	$(VENV)/python -m benchmarks.notebook_form

.PHONY: pictures
pictures: setup-browser ## docs/images: the demo's terminal, two plots of the notebook and the drainer's page, from real runs; refuses on a busy machine
	$(VENV)/python -m benchmarks.pictures

.PHONY: site
site: setup-dev ## docs/ as a site in var/site (mkdocs.yml); fails on a link that leads nowhere and on a page that docs/index.md does not name
	NO_MKDOCS_2_WARNING=1 $(VENV)/python -m mkdocs build --strict

.PHONY: check
check: lint type imports ## lint, types and imports together

.PHONY: gate
gate: check site setup ## before each commit, in minutes: lint, types, imports, documents, unit and property tests, one recorded case through the whole job
	$(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder -m "not slow" tests/test_layout.py tests/test_parity.py tests/unit tests/property $(GATE_CASE)

.PHONY: test
test: setup ## every test not marked slow, two files at a time, those that took longest first (tests/durations.txt): they wait more than they compute
	$(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder -m "not slow" --junitxml=var/test.xml tests

.PHONY: durations
durations: setup-dev ## tests/durations.txt from the last `make test`
	$(VENV)/python -m tests.support.durations var/test.xml

.PHONY: test-mysql
test-mysql: a-mysqld setup ## contract and integration tests, the target a MySQL: TIDB_BINLOG_TEST_MYSQLD=/path/to/mysqld, or the one on the PATH
	TIDB_BINLOG_TEST_MYSQLD="$(MYSQLD)" $(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder -m "not slow" tests/contract tests/integration

# A MariaDB's program has that name too.
.PHONY: a-mysqld
a-mysqld:
	@case "$$("$(MYSQLD)" --version 2>&1)" in \
	*MariaDB*) why="$(MYSQLD) is a MariaDB" ;; \
	*Ver*) why="" ;; \
	*) why="there is no program $(or $(MYSQLD),mysqld)" ;; \
	esac; \
	if [ -n "$$why" ]; then echo "test-mysql: nothing was tested: $$why; set TIDB_BINLOG_TEST_MYSQLD to the mysqld of a MySQL" >&2; exit 1; fi

.PHONY: unit
unit: setup-dev ## pure tests: no Spark, no server
	$(PYTEST) tests/unit tests/test_layout.py

.PHONY: property
property: setup-dev ## property tests against simple models, with new examples each time
	TIDB_BINLOG_EXAMPLES=new $(PYTEST) tests/property tests/unit

.PHONY: contract
contract: setup-etcd ## one suite over both registries, PD's with a real etcd
	$(PYTEST) tests/contract

.PHONY: wire
wire: setup-etcd ## tests of who speaks to whom: TiDB, Pump, Drainer, PD, etcd, binlogctl; against recordings of real programs, and an etcd
	$(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder -m "not slow" $(WIRE)

.PHONY: interop
interop: setup ## against a real PD, TiDB and Pump: PD_URLS=http://host:2379 TIDB_STATUS=http://host:10080 [TIDB_SQL=user:password@host:4000]
	@if [ -n "$$PD_URLS" ] && [ -n "$$TIDB_STATUS" ]; then $(PYTEST) -v tests/interop; \
	else echo "interop: skipped, nothing was tested: set PD_URLS and TIDB_STATUS to those of a real cluster"; fi

.PHONY: integration
integration: setup ## tests with MariaDB, gRPC and Spark
	$(PYTEST) -m "not slow" tests/integration

.PHONY: slow
slow: setup-browser ## the tests that `make test` leaves out; SHARD=2/8: the second of eight parts
	TIDB_BINLOG_SHARD=$(SHARD) $(PYTEST) -n 2 --dist worksteal -m "slow and not torture" tests

.PHONY: golden
golden: setup ## rehearse every recorded case in both deliveries and compare (GOLDEN=, CASES=, DELIVERIES=)
	@for case in $(CASES); do for delivery in $(DELIVERIES); do \
	  ./spark-submit.sh rehearse $(GOLDEN)/$$case --delivery $$delivery --pace 0 || exit 1; \
	done; done

.PHONY: spark-next
spark-next: setup ## the golden cases with the newest PySpark and Delta of the package index, in a copy of the project (SPARK_NEXT=packages, CASES=)
	$(VENV)/python -m benchmarks.spark_next --cases "$(CASES)" $(SPARK_NEXT)

.PHONY: demo
demo: ## see it work for a minute
	./spark-submit.sh demo

.PHONY: torture
torture: setup ## the whole kill test: every fault point, random kill -9, kills of the target; malformed sessions against the Pump's server
	$(PYTEST) -n 2 --dist worksteal -rP --show-capture=stdout tests/torture

.PHONY: looks
looks: setup ## a reader during the stream: the total of `bank` at every query, at the recorded pace and five times as fast
	TIDB_BINLOG_PACES=1,0.2 $(PYTEST) -s tests/integration/test_bank_looks.py

.PHONY: bench
bench: setup ## the backlog from query.start() to the checkpoint at end_ts, compared to the target's bulk limit (BENCH_ARGS=)
	$(VENV)/python -m benchmarks.bench_backlog $(BENCH_ARGS)

.PHONY: bench-rows
bench-rows: setup-dev ## row operations per second: lanes, one connection, net changes (BENCH_ARGS=)
	$(VENV)/python -m benchmarks.bench_rows $(BENCH_ARGS)

.PHONY: bench-start
bench-start: setup ## from the command to caught up behind Pumps that deliver as real ones do, beside a bare JVM, a bare session and the target's limit (BENCH_ARGS=)
	$(VENV)/python -m benchmarks.bench_start $(BENCH_ARGS)

.PHONY: bench-long
bench-long: setup ## two million row events: the backlog of `bench` played seven times, compared to `bench`; memory in each seventh (BENCH_ARGS=)
	$(VENV)/python -m benchmarks.bench_long $(BENCH_ARGS)

.PHONY: bench-scale
bench-scale: setup ## 1, 2, 4 Pumps, 1 and 2 cores, 2 and 4 parts on a standalone Spark: throughput, lag, a model (docs/scaling.md; BENCH_ARGS=)
	$(VENV)/python -m benchmarks.bench_scale $(BENCH_ARGS)

.PHONY: bench-lag
bench-lag: setup ## lag of a row under 500 transactions a second, both deliveries
	$(VENV)/python -m benchmarks.bench_lag

.PHONY: bench-lake
bench-lake: setup ## the lake beside the MySQL sink: row events per second, mirrors, lag under 500 transactions a second, many tables (BENCH_ARGS=)
	$(VENV)/python -m benchmarks.bench_lake $(BENCH_ARGS)

.PHONY: bench-past
bench-past: setup ## a ledger of 100 million changes: what a question about a moment, a table or a row reads of it (BENCH_ARGS=--rows=N)
	$(VENV)/python -m benchmarks.bench_past $(BENCH_ARGS)

.PHONY: bench-lag-idle
bench-lag-idle: setup ## lag of single rows over Pumps like real ones, without and with waking them
	$(VENV)/python -m benchmarks.bench_lag --idle

.PHONY: bench-bootstrap
bench-bootstrap: setup ## tables copied by a bootstrap, compared to the target's own rate (BENCH_ARGS=)
	$(VENV)/python -m benchmarks.bench_bootstrap $(BENCH_ARGS)

.PHONY: bench-ddl
bench-ddl: setup ## a backlog of 300 ADD COLUMNs with rows between them, compared to the target's own rate (BENCH_ARGS=)
	$(VENV)/python -m benchmarks.bench_ddl $(BENCH_ARGS)

.PHONY: bench-history
bench-history: setup-dev ## a DDL history of 100,000 jobs: starts, one more job, memory (BENCH_ARGS=jobs)
	$(VENV)/python -m benchmarks.bench_history $(BENCH_ARGS)

.PHONY: bench-decode
bench-decode: setup-dev ## rows to Arrow compared to the protobuf parse of the same bytes
	$(VENV)/python -m benchmarks.bench_decode $(BENCH_ARGS)

.PHONY: bench-changes
bench-changes: setup-dev ## binlogs to changes as rows (VARIANT, one table's columns) compared to what a Drainer decodes (BENCH_ARGS=)
	$(VENV)/python -m benchmarks.bench_changes $(BENCH_ARGS)

.PHONY: bench-plan
bench-plan: setup-dev ## row events to SQL statements
	$(VENV)/python -m benchmarks.bench_plan $(BENCH_ARGS)

.PHONY: bench-pump
bench-pump: setup-dev ## write and read rates of a Pump, compared to the disk and a bare grpcio server (BENCH_ARGS=)
	$(VENV)/python -m benchmarks.bench_pump $(BENCH_ARGS)

.PHONY: bench-verify
bench-verify: setup ## a million rows verified, compared to the two sides' own checksums; the lag of a stream beside it (BENCH_ARGS=)
	$(VENV)/python -m benchmarks.bench_verify $(BENCH_ARGS)

.PHONY: ddl-record
ddl-record: setup ## what each DDL of the cases does to a target, recorded in tests/ddl_record; with RECORD_ARGS=--compare compared to the record
	$(VENV)/python -m tests.ddl_record.record $(RECORD_ARGS)

.PHONY: soak
soak: setup ## 200 transactions a second for SOAK_MINUTES (40): memory, files and tables at start and end, flat or not (SOAK_ARGS=)
	$(VENV)/python -m benchmarks.soak --minutes $(or $(SOAK_MINUTES),40) $(SOAK_ARGS)

.PHONY: wheel
wheel: setup-dev ## build dist/tidb_binlog_spark-*.whl
	rm -rf build *.egg-info dist/*.whl
	$(VENV)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

.PHONY: proto
proto: setup-dev ## regenerate the wire messages; fails if the committed ones differ
	$(VENV)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. pyspark_tidb_binlog/schemas/proto/*.proto
	$(VENV)/ruff format --quiet --isolated --line-length 140 schemas/proto/*_pb2*.py
	git diff --exit-code --stat schemas/proto

.PHONY: clean
clean: ## remove the files of tools; the virtual environment and var/ stay
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis spark-warehouse
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
