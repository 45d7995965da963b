# Each target does its own set-up: the first one used creates .venv and fills it.

PYTHON ?= python3
# Seven at a time where there is memory for it (14 GB; six in 10), as most of the time is waited: on
# two cores three took 24 minutes, of which the processors worked 13. Whole files, because files
# share hubs and Spark; tests/sharing.py has three of them take what starts Spark, which wants half
# a processor, and four what waits. PROCESSES=4 are four; PARALLEL= runs the tests one by one.
PROCESSES ?= $(shell awk '/^MemAvailable/ {print ($$2 > 1.4e7 ? 7 : $$2 > 1e7 ? 6 : 3)}' /proc/meminfo 2>/dev/null)
PARALLEL ?= --numprocesses $(or $(PROCESSES),3) --dist loadfile --no-loadscope-reorder
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Where it is set each of a thousand processes compiles all it imports: a hub starts in 0.66 s of a
# processor for 0.42, and each of pytest's workers collects in 15 for 5.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run serve test debian spark-next test-fast test-compiled compiled docs soak fuzz lint bench bench-cluster bench-retained bench-stock bench-topics bench-floors bench-growth bench-many clean cluster guard

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

run: .venv/demo ## Start the hub, feed it this computer's telemetry, show the tables (DURATION=60 ends by itself).
	@./compiled.sh $(BIN)/python examples/telemetry/run.py $(if $(DURATION),--duration $(DURATION))

serve: .venv/hub ## Run the hub alone on 127.0.0.1:1883 and :8080 (ARGS="--data DIR" and the like).
	@./compiled.sh $(BIN)/hubbub serve $(ARGS)

cluster: .venv/cluster ## Three hubs over three nats-servers, a client of each protocol, a hub killed and back (DURATION=20).
	@$(BIN)/python examples/cluster/run.py $(if $(DURATION),--duration $(DURATION))

test: ## Check style and types, then run every test; as root it installs the Debian packages they need.
	@$(MAKE) --no-print-directory --jobs 3 .venv/dev build/engines debian
	@$(MAKE) --no-print-directory --jobs 2 lint build/spark.jsa build/rewritten
	@tests/all.sh $(PARALLEL) --durations 30

debian:
	@tests/setup.sh

test-fast: .venv/dev ## Run the tests that need neither Spark nor other servers (under two minutes).
	@$(BIN)/pytest $(PARALLEL) -m "not spark and not interop and not slow and not soak"

spark-next: .venv/dev ## Run the tests of Spark against its next minor version, if the package index has one (VERSION=…).
	@VERSION=$(VERSION) tests/spark-next.sh $(ARGS)

soak: .venv/dev ## Run what the tests only sample: 100 rounds of `kill -9`, floods, attacks (RECORD=1: tests/security.json).
	@HUBBUB_RECORD=$(RECORD) HYPOTHESIS=random $(BIN)/pytest -m soak $(ARGS)

fuzz: .venv/dev ## Say what nobody would to every parser (MINUTES=5, shared; ARGS="--plain TARGET …").
	@$(BIN)/python -c 'import atheris' 2>/dev/null || ./install.sh fuzz || true
	@$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),5) $(ARGS)

compiled: .venv/hub ## Compile the hot path with gcc into build/compiled (minutes); `make serve` does it beside.
	@./compiled.sh
	@./compiled.sh $(BIN)/hubbub --version
	@echo "That runs with \`make run\`, \`make serve\` and, say, \`./compiled.sh $(BIN)/hubbub serve\`, as long as the source stays"
	@echo "as it is. $(BIN)/hubbub by itself stays plain Python; elsewhere it is compiled by"
	@echo "  PYTHONPATH=$(CURDIR)/build/compiled $(CURDIR)/$(BIN)/hubbub serve"

test-compiled: .venv/dev compiled ## Run the fast tests against the compiled hot path.
	@PYTHONPATH=build/compiled $(BIN)/pytest -o 'pythonpath=build/compiled .' \
	  -m "not spark and not interop and not slow and not soak and not pure" $(ARGS)

lint: .venv/dev ## Check style, types and import directions.
	@$(BIN)/ruff check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

docs: .venv/docs ## Make a site of all documents in build/docs/site: checked links, a search.
	@$(BIN)/python docs/site.py

bench: .venv/dev ## Measure broker CPU per message beside mosquitto (minutes).
	@./compiled.sh || echo "No compiled package could be made: its columns will be missing."
	@$(BIN)/python -m benchmarks.mqtt $(ARGS)

bench-cluster: .venv/dev ## Measure what a cluster costs, and what crosses between two nodes.
	@$(BIN)/python -m benchmarks.cluster $(ARGS)

guard: .venv/dev ## Count instructions a message and compare with the accepted ones (ARGS=--accept).
	@$(BIN)/python -m benchmarks.guard $(ARGS)

bench-retained: .venv/dev ## Measure how fast a new subscriber gets 10,000 retained messages.
	@$(BIN)/python -m benchmarks.retained $(ARGS)

bench-stock: .venv/dev ## Measure what users of stock clients feel (paho) beside mosquitto.
	@$(BIN)/python -m benchmarks.stock $(ARGS)

bench-topics: .venv/dev ## Measure a publish among a thousand and a million subscriptions.
	@$(BIN)/python -m benchmarks.topics $(ARGS)

bench-floors: .venv/dev compiled ## Measure programs that only pass messages on, in C and in Python, beside brokers.
	@$(BIN)/python -m benchmarks.floors $(ARGS)

bench-growth: .venv/dev compiled ## Measure how a delivery's cost grows with readers, topics, bytes, and draw it.
	@$(BIN)/python -m benchmarks.growth --draw $(ARGS)

bench-many: .venv/dev compiled ## Measure what thousands of connections cost that hardly say anything.
	@$(BIN)/python -m benchmarks.many $(ARGS)

clean: ## Remove .venv and everything built or cached; the data in hubbub-data stays.
	rm -rf .venv build dist src/*.egg-info .hypothesis .*_cache
	find src tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +

# The stamps: a set of packages is installed again when pyproject.toml changed.
.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Hubbub needs Python 3.11 or later: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Creating .venv"
	@$(PYTHON) -m venv .venv || \
	  { rm -rf .venv; echo "No venv module: on Debian, apt install python3-venv"; exit 1; }

# Without Spark; who has it already needs nothing more.
.venv/hub: pyproject.toml | .venv/bin/python
	@[ -e .venv/demo ] || [ -e .venv/dev ] || { \
	  echo "Installing the hub into .venv (the first time 25 MB to fetch)"; ./compiled.sh --beside; ./install.sh; }
	@touch $@

.venv/docs: pyproject.toml | .venv/bin/python
	@[ -e .venv/dev ] || { echo "Installing what makes the site into .venv"; ./install.sh docs; }
	@touch $@

.venv/cluster: pyproject.toml | .venv/bin/python
	@[ -e .venv/dev ] || { echo "Installing the hub and nats-py into .venv"; ./install.sh cluster; }
	@touch $@

.venv/demo: pyproject.toml | .venv/bin/python
	@echo "Installing the hub and Spark into .venv (the first time 700 MB to fetch: minutes)"
	@[ -e .venv/dev ] || ./compiled.sh --beside
	@./install.sh pipeline,examples
	@touch $@

# Of eight thousand files few are ever imported: Python compiles those when it meets them.
.venv/dev: pyproject.toml | .venv/bin/python
	@echo "Installing the hub, Spark and the test tools into .venv (the first time 900 MB to fetch: minutes)"
	@./install.sh dev --no-compile
	@touch $@

build/engines: tests/engines.txt | .venv/bin/python
	@echo "Fetching engines that read the tables as strangers do (the first time 150 MB)"
	@rm -rf $@; $(BIN)/pip install --quiet --no-deps --no-compile --target $@ -r $< || { \
	  rm -rf $@; echo "Not here: the tests that need them are skipped"; }
	@[ ! -d $@ ] || touch $@

# Each of pytest's workers compiled all tests by itself, at the same time: 24 s of a processor, not ten.
build/rewritten: .venv/dev
	@echo "Compiling the tests as pytest runs them (once)"
	@$(BIN)/pytest --collect-only --quiet >/dev/null || true
	@mkdir -p build; touch $@

build/spark.jsa: .venv/dev
	@echo "Writing Spark's classes as its tests start from them (once, half a minute)"
	@$(BIN)/python -m tests.java
