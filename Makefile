# Everything runs from .venv, which the first target that needs it makes. `make help` lists the targets.

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
CHECK_HOST := sh tools/check_host.sh
# Three processes share the tests, on two processors too: many tests wait for other processes. Each starts a Spark of its own; one that
# has done its share takes tests from another.
IN_PARALLEL := -n 3 --dist worksteal
# Container images often forbid bytecode. Then each of the thousands of Python processes that tests start compiles every module again.
unexport PYTHONDONTWRITEBYTECODE
# Without Maven, released servers, or hours.
IN_ANY_CLONE := not slow and not spark_versions and not compat and not compat_stores and not cluster and not harness and not interop
# All tests of these markers are there (tests/test_markers.py); to collect the others would take half a minute.
COMPAT := tests/compat
CLUSTER := tests/cluster
INTEROP := tests/interop
# None of their tests runs in any clone: three processes need not import them.
ELSEWHERE := $(addprefix --ignore=,$(COMPAT) $(CLUSTER) $(INTEROP))
SPARK_VERSIONS := 4.0 4.1 4.2 4.3
OLDER_SPARKS := 4.0 4.1
SPARK_TESTS := tests/connector
KAFKA_VERSIONS := 2.8.2 3.6.2 3.9.1 4.3.0
KAFKA_TESTS := tests/storage/bridge tests/storage/cli tests/test_kafka_server.py
HARNESS := tests/crash tests/fuzz tests/security tests/storage/reliable tests/storage/bridge tests/storage/server/ha

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv interop java spark-classes servers kafka-jars demo cluster-demo test test-long slow deploy compat compat-stores cluster cluster-short harness harness-short ha-kills kafka kafka-versions spark-versions spark-versions-short crash soak bench bench-spark bench-peers lint types check clean seeded-faults

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP) ## make or refresh .venv with everything needed here (the other targets do it by themselves)

# pip shows its progress: bars on a terminal, else a line for each package. Editable, so that only a change of the dependencies or of the C sources asks for another round. An environment whose interpreter is gone
# (a removed or upgraded Python) is made anew.
$(STAMP): setup.py pyproject.toml $(wildcard storage/rmq_store/native/*)
	@python=$$($(CHECK_HOST) python) || exit 1; \
	"$(PY)" -c '' 2>/dev/null || "$$python" -m venv --clear "$(VENV)" || exit 1; \
	echo "Installing into $(VENV): Spark is about 450 MB, so the first time takes some minutes."; \
	"$(PY)" -u -m pip install --disable-pip-version-check -e '.[spark,dev]' \
	    || { echo "The packages could not be installed; pip's message above says which one. Is the network reachable?" >&2; exit 1; }; \
	touch "$@"

java:
	@$(CHECK_HOST) java

# Once: an archive of the classes that Spark loads, so that each JVM of the tests starts in half the time.
spark-classes: java $(STAMP)
	@$(PY) tests/helpers/spark_jvm.py

servers: ## install PostgreSQL, MariaDB and Redis, which the tests of rmq_store.reliable start for themselves (root)
	@sh tools/test_servers.sh install

kafka-jars: java $(STAMP) ## fetch the released Kafka that the tests of rmq_store.bridge start for themselves (Maven)
	@PYTHONPATH=tests $(PY) -m bench.kafka_broker

demo: java $(STAMP) ## show the main job on a store that a real RocketMQ broker wrote
	@$(PY) examples/demo.py

cluster-demo: java $(STAMP) ## show a stream over real brokers, and the death of a master (needs Maven, 3 GB of memory)
	@$(PY) examples/cluster_demo.py

test: spark-classes ## run the tests (less than ten minutes)
	@$(PY) -m pytest $(IN_PARALLEL) -m "not long and $(IN_ANY_CLONE)" $(ELSEWHERE) $(PYTEST_ARGS)

test-long: spark-classes ## run those that kill processes, read stores of many brokers, or keep Spark busy; part of CI (minutes)
	@$(PY) -m pytest $(IN_PARALLEL) -m "long and $(IN_ANY_CLONE)" $(ELSEWHERE) $(PYTEST_ARGS)

slow: spark-classes ## run the tests that `make test` leaves out because they take long
	@$(PY) -m pytest $(IN_PARALLEL) -m "slow and not cluster and not harness and not interop" -o timeout=600 $(PYTEST_ARGS)

deploy: java $(STAMP) ## run the recipes of docs/deploy.md: an archive for a standalone cluster, Connect (minutes; needs PyPI)
	@$(PY) -m pytest -m "slow" tests/deploy $(PYTEST_ARGS)

compat: java $(STAMP) ## let RocketMQ's own Java classes read and write our stores (needs Maven)
	@$(PY) -m pytest $(IN_PARALLEL) -m "compat" $(COMPAT) $(PYTEST_ARGS)

compat-stores: java $(STAMP) ## let brokers of nine versions make a store of each kind, and go on behind us (an hour; root, Maven)
	@$(PY) -m pytest -m "compat_stores" -o timeout=900 tests/compat/stores $(PYTEST_ARGS)

# In one process, which starts one cluster of each version: six JVMs are enough for two processors.
cluster: spark-classes ## run everything against clusters of released brokers (two hours; needs Maven; goes on where it stopped)
	@RMQ_TEST_SERVERS=required RMQ_CLUSTER_DONE=build/cluster-done $(PY) -m pytest -m "cluster" -o timeout=1800 $(CLUSTER) $(PYTEST_ARGS)

cluster-short: spark-classes ## one test for each feature against a cluster of each version (minutes; needs Maven)
	@$(PY) -m pytest -m "cluster and not slow" -o timeout=300 $(CLUSTER) $(PYTEST_ARGS)

interop: java $(STAMP) ## let clients of other languages use a served store (docs/interop.md; needs Maven, Node, Go, Cargo)
	@RMQ_TEST_SERVERS=required $(PY) -m pytest -m "interop" -o timeout=600 $(INTEROP) $(PYTEST_ARGS)
	@PYTHONPATH=tests $(PY) tests/interop_page.py

harness: spark-classes ## the short forms of the crash, fuzz and security proof, and their teeth (12 minutes)
	@$(PY) -m pytest $(IN_PARALLEL) -m "harness and not slow" -o timeout=900 $(HARNESS) $(PYTEST_ARGS)

harness-short: spark-classes ## the same without the proof of its teeth; part of CI
	@$(PY) -m pytest $(IN_PARALLEL) -m "harness and not slow and not teeth" -o timeout=900 $(HARNESS) $(PYTEST_ARGS)

ha-kills: $(STAMP) ## kill a SYNC_MASTER and its slave, both ours, 500 times (an hour; goes on where it stopped)
	@$(PY) -m pytest -m "harness and slow" tests/storage/server/ha/test_kills.py $(PYTEST_ARGS)

kafka: kafka-jars ## kill mirrors to and from a real Kafka, and the Kafka, 100 times each (hours; needs Maven)
	@RMQ_TEST_SERVERS=required RMQ_MIRROR_KILLS=100 $(PY) -m pytest -m "harness" -o timeout=7200 tests/storage/bridge/kills $(PYTEST_ARGS)

# Two processes, each with a broker of its own.
kafka-versions: java $(STAMP) ## test all that meets a Kafka with 2.8, 3.6, 3.9 and 4.3 (a quarter of an hour; needs Maven)
	@PYTHONPATH=tests $(PY) -m bench.kafka_broker $(KAFKA_VERSIONS)
	@for version in $(KAFKA_VERSIONS); do \
	    echo "Kafka $$version"; \
	    RMQ_TEST_SERVERS=required RMQ_TEST_KAFKA=$$version $(PY) -m pytest -n 2 --dist worksteal \
	        -m "kafka_versions and not harness" -o timeout=300 $(KAFKA_TESTS) $(PYTEST_ARGS) || exit 1; \
	done

# Each has a Spark of its own beside the packages of .venv.
build/spark-%/.installed: $(STAMP) tools/spark_version.sh
	@sh tools/spark_version.sh $* $(PY)

spark-versions: java $(foreach version,$(SPARK_VERSIONS),build/spark-$(version)/.installed) ## run the connector's suite with the newest Spark 4.0, 4.1, 4.2 and 4.3 (20 minutes and 500 MB for each)
	@for version in $(SPARK_VERSIONS); do \
	    echo "Spark $$version"; \
	    build/spark-$$version/bin/python -m pytest $(IN_PARALLEL) -m "spark_versions or not slow" -o timeout=600 $(SPARK_TESTS) $(PYTEST_ARGS) || exit 1; \
	done

spark-versions-short: java build/spark-4.0/.installed ## batch, stream, kill and repeat with Spark 4.0 (five minutes)
	@build/spark-4.0/bin/python -m pytest -m "spark_versions and not slow" $(SPARK_TESTS)/spark_versions $(PYTEST_ARGS)

seeded-faults: spark-classes ## put a fault in for each row of docs/guarantees.md: a test must notice (half an hour)
	@PYTHONPATH=tests $(PY) -m seeded

crash: java $(STAMP) ## break stores on purpose for up to an hour, and count what they lost (docs/reliability.md)
	@PYTHONPATH=tests $(PY) -m crash run --scale crash --teeth --jobs 2 $(CRASH_ARGS)

soak: java $(STAMP) ## the same with the full figures: hours; goes on where `make crash` or itself stopped
	@PYTHONPATH=tests $(PY) -m crash run --scale soak --teeth --jobs 2 $(CRASH_ARGS)

bench: java $(STAMP) ## measure store, source and sink, each beside its yardstick (docs/performance.md)
	@PYTHONPATH=tests $(PY) -m bench run $(BENCH_ARGS)
	@PYTHONPATH=tests $(PY) -m bench report

bench-spark: java $(foreach version,$(OLDER_SPARKS),build/spark-$(version)/.installed) ## measure reads and writes with older Sparks, each beside its own null source
	@for version in $(OLDER_SPARKS); do \
	    echo "Spark $$version"; \
	    PYTHONPATH=tests build/spark-$$version/bin/python -m bench run --json docs/performance/spark-$$version.json \
	        --row read-batch-5 --row read-stream-5 --row read-stream-17 --row write-batch-5 --row write-stream-5 || exit 1; \
	done
	@PYTHONPATH=tests $(PY) -m bench report

bench-peers: java $(STAMP) ## the same beside the released RocketMQ and Kafka too (needs Maven)
	@PYTHONPATH=tests $(PY) -m bench run --peers $(BENCH_ARGS)
	@PYTHONPATH=tests $(PY) -m bench report

lint: $(STAMP) ## ruff: style and banned calls
	@$(PY) -m ruff check .

types: $(STAMP) ## mypy --strict over both packages
	@$(PY) -m mypy

check: ## what CI runs: lint, types, spark-versions-short, compat, harness-short, cluster-short, test-long, test
	@.ci/run

clean: ## remove .venv and everything that was built or cached
	rm -rf $(VENV) build dist *.egg-info tests/compat/java/target tests/compat/stores/java/target tests/cluster/java/target tests/bench/java/target .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse
	rm -f storage/rmq_store/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
