# What there is to do here: "make help". Everything happens in .venv; nothing outside the repository is changed,
# but for "make system-deps".
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
BIN := .venv/bin
SUMMARY := build/test-summary.txt

# Under REQUIRE_REAL=1 a program that a test needs and that is missing is a failure instead of a skip.
export REQUIRE_REAL

SEEDS ?= 2000
FROM ?= 0
SECONDS ?= 60
SEED ?= 0
STRESS ?=

.PHONY: help setup test units lint format coverage sim fuzz mutants compiled test-compiled bench demo sim-demo stress system-deps bench-deps clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.stamp ## Make .venv with everything that development needs; does nothing when it is up to date
	@:

.venv/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed, as in: make setup PYTHON=python3.12"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv \
	  || { rm -rf .venv; echo "venv is missing: on Debian, apt-get install python3-venv"; exit 2; }
	@touch $@

.venv/.stamp: pyproject.toml | .venv/.python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# What the demo needs and nothing else: a tenth of what development needs. A .venv with everything has it, too.
.venv/.demo-stamp: pyproject.toml | .venv/.python
	@test .venv/.stamp -nt pyproject.toml \
	  || $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo]'
	@touch $@

test: setup ## Everything: lint, unit tests, 2000 simulated runs; says at the end what was skipped
	@$(MAKE) lint
	@$(MAKE) units
	@$(MAKE) sim
	@cat $(SUMMARY)
	@grep -q '^skipped: ' $(SUMMARY) || echo 'skipped: nothing'

units: setup ## The unit tests alone
	@rm -f $(SUMMARY)
	$(BIN)/python -m pytest -n 2 --summary-file $(SUMMARY)

lint: setup ## ruff (rules and format) and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: setup ## Rewrite the sources as "make lint" wants them
	$(BIN)/ruff check --fix --select I
	$(BIN)/ruff format

coverage: setup ## The unit tests, with the lines and branches that no test reaches
	$(BIN)/python -m pytest -n 2 --cov --cov-branch

sim: setup ## The simulator: SEEDS=2000 runs, the first one FROM=0
	$(BIN)/python -m tests.sim --seeds $(SEEDS) --from $(FROM)

fuzz: setup ## Fuzz every parser, SECONDS=60 each
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) --seed $(SEED)

mutants: setup ## Change the source in small ways and list what no test notices: all, or MODULES=core.send,exchange
	$(BIN)/python -m tests.mutants --children 2 $(if $(MODULES),--modules $(MODULES))

compiled: build/compiled/.stamp ## Compile the hot path (mypyc; a C compiler) into build/compiled; does nothing when it is up to date
	@:

build/compiled/.stamp: .venv/.stamp hatch_build.py $(shell find tunnel servlet client -name '*.py')
	@rm -rf build/compiled && mkdir -p build
	HATCH_BUILD_HOOKS_ENABLE=true $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  --target build/compiled .
	@touch $@

# The tests that look at what the parts do; one looks at which rows of a table are used, by watching the table.
test-compiled: compiled ## The tests of the compiled parts, of carriers and scenarios, and 300 simulated runs, on what is compiled
	TUNNEL_COMPILED=1 $(BIN)/python -m pytest -n 2 -q -o pythonpath='build/compiled .' tests/wire tests/core tests/exchange \
	  tests/servlet tests/scripted tests/sim tests/carriers tests/scenarios $(wildcard tests/test_driver*.py tests/test_transport*.py) \
	  tests/test_attachment.py tests/test_clock.py tests/test_listener.py tests/test_malloc.py tests/test_splice.py tests/test_streams.py \
	  --deselect tests/scripted/test_scripts.py::test_the_scripts_use_every_row_of_the_state_table
	PYTHONPATH=build/compiled:. PYTHONSAFEPATH=1 $(BIN)/python -m tests.sim --seeds 300 --from 700000

bench: setup ## Measure the core
	$(BIN)/python -m loadtests.bench.core

demo: .venv/.demo-stamp ## Watch a stream outlive lost requests and two dead relays: real processes, real HTTP
	@$(BIN)/python -m loadtests.demo

sim-demo: setup ## The same in the simulator: one transfer on a virtual clock, drawn
	@$(BIN)/python -m tests.sim.demo

# What tests put in the middle and at the ends: proxies, servers, clients; Java is for Spark, the C compiler for "make
# compiled". On Debian the interpreter's own tests are a package by themselves.
SYSTEM_DEPS := nginx haproxy squid nats-server postgresql redis-server redis-tools openssh-server openssh-client \
  chromium curl git openssl default-jre-headless apache2-utils gcc libc6-dev python3-dev
SYSTEM_DEPS_IF_THERE := libpython3.11-testsuite libpython3.12-testsuite libpython3.13-testsuite
# What the measurements compare with.
BENCH_DEPS := socat httptunnel

stress: setup ## Users on tunnel sockets through a relay that loses packets: gates, page, Spark's report (3 minutes)
	$(BIN)/python -m loadtests.stress --trace $(STRESS)

system-deps: ## Install the real proxies, servers and clients of the tests (Debian; as root or with sudo)
	@command -v apt-get >/dev/null || { echo "not Debian: install these yourself: $(SYSTEM_DEPS)"; exit 2; }
	@root=; if [ "$$(id -u)" != 0 ]; then root=sudo; \
	  command -v sudo >/dev/null || { echo "run this as root, or install sudo"; exit 2; }; fi; \
	  packages='$(SYSTEM_DEPS) $(EXTRA_DEPS)'; \
	  missing() { for package in $$packages; do \
	    dpkg-query -W -f '$${db:Status-Status}' "$$package" 2>/dev/null | grep -qx installed || echo "$$package"; done; }; \
	  [ -n "$$(missing)" ] || exit 0; \
	  $$root apt-get update -qq; \
	  for package in $(SYSTEM_DEPS_IF_THERE); do \
	    ! apt-cache show "$$package" >/dev/null 2>&1 || packages="$$packages $$package"; done; \
	  $$root env DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends $$(missing) >/dev/null

bench-deps: ## Install the peers that the measurements compare with (Debian; as root or with sudo), and "make compiled"
	@$(MAKE) system-deps EXTRA_DEPS='$(BENCH_DEPS)'
	@$(MAKE) compiled

clean: ## Remove what was built, .venv included
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
