# Everything runs in a virtual environment of its own, made on first use. An interpreter is taken only
# if it runs: a name on the PATH can be a version switcher's stub for a version that is not there.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(not sys.version_info >= (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
# Two steps to a whole environment: what the examples import, then the tools of tests and benchmarks.
EXAMPLES_READY := $(VENV)/.ready-examples
READY := $(VENV)/.ready
# pip compiles on one core whatever it installs, torch with 2,000 modules; this is left to us.
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-compile
# Most tests wait most of the time; those of a file stay together, as they share servers. Files come
# in the order of tests/conftest.py.
PYTEST := $(BIN)/python -m pytest -n 5 --dist loadfile --no-loadscope-reorder

.PHONY: help setup demo test check lint types unit portable bench simulate mutants chaos long dist docs pages packages clean

help:  ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

setup: $(READY)  ## Make the virtual environment with everything that tests and examples need

$(EXAMPLES_READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "no python3 of version 3.11 or newer with the venv module found (Debian:" \
		"apt-get install python3-venv); say which with make PYTHON=/path/to/python3"; exit 1; }
	@echo "1 of 3: a virtual environment in $(VENV), by $(PYTHON)"
	@$(BIN)/python -c 'import pip' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV) || \
		{ echo "$(PYTHON) could not make a virtual environment: on Debian, apt-get install python3-venv"; exit 1; }
	@echo "2 of 3: torch, which is large, and numpy"
	$(INSTALL) --progress-bar on -e '.[examples]'
	@echo "3 of 3: compiling the modules of torch that the examples import: about a minute"
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -c 'import torch._dynamo'
	@touch $@

$(READY): $(EXAMPLES_READY)
	@echo "the tools of tests and benchmarks, beside what is there"
	$(INSTALL) --progress-bar on -e '.[dev,dev-ray,bench,programs,docs]'
	@echo "compiling all modules"
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true  # of some that nobody imports it can't
	@touch $@

demo: $(EXAMPLES_READY)  ## Train on 4 workers, kill one in the middle, start again, warm; the same with torchrun
	$(BIN)/python examples/demo.py

test: setup lint types  ## Everything: format, lint, types, layers, all tests
	$(PYTEST) -m "not long"
	RELIGHT_HOST=portable $(PYTEST) -m "not slow and not long" tests/test_orphans.py tests/test_signals.py

check: setup lint types unit  ## The fast part of the tests, below 2 minutes

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

unit: setup
	$(PYTEST) -m "not slow and not long"

# What a job of one node meets; tests/portable/exceptions.py names what can't hold there.
ONE_NODE := tests/test_*.py tests/host tests/cli tests/differential tests/portable tests/schedulers/test_local*.py
portable: setup  ## All tests of one node as on macOS, as far as Linux can play it
	RELIGHT_HOST=portable $(PYTEST) -rs -m "not long" --ignore=tests/test_layers.py $(ONE_NODE)

bench: setup  ## Measure against torchrun; writes benchmarks/results/
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.warm
	$(BIN)/python -m benchmarks.workers
	$(BIN)/python -m benchmarks.study
	$(BIN)/python -m benchmarks.submit
	$(BIN)/python -m benchmarks.nodes
	$(BIN)/python -m benchmarks.scale

SEEDS ?= 10000
N ?= 1000
simulate: setup  ## Run the simulated group with SEEDS seeds
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

mutants: setup  ## Break fencing rules one by one: the simulation must find each within SEEDS seeds
	$(BIN)/python -m tests.simulation.mutants --seeds $(SEEDS)

chaos: setup  ## N jobs on this machine whose parts are killed and stopped at random
	$(BIN)/python -m tests.chaos --runs $(N)

long: setup  ## Tests of minutes to hours
	$(BIN)/python -m pytest -m long

dist: setup  ## Build the wheel, the sdist and the launcher in one file, and try them on each Python there is
	$(BIN)/python -m tests.release

docs: setup  ## Build the documentation site in .build/site
	$(BIN)/python -m documentation.site

pages: setup  ## Write what is generated: the page of flags, the failure guide, the figures and the picture of the README
	$(BIN)/python -m documentation.from_torchrun
	$(BIN)/python -m documentation.failures
	$(BIN)/python -m benchmarks.readme
	$(BIN)/python -m documentation.picture

PACKAGES := .venv-packages

$(PACKAGES)/.ready: tests/packages/requirements.txt
	$(PYTHON) -m venv $(PACKAGES)
	$(PACKAGES)/bin/python -m pip install torch==2.13.0 numpy setuptools wheel hatchling editables
	DS_BUILD_OPS=0 $(PACKAGES)/bin/python -m pip install --no-deps --no-build-isolation -r $< -e .
	$(PACKAGES)/bin/python -m tests.packages.torchvision_cpu
	@touch $@

packages: $(PACKAGES)/.ready  ## Try 40 packages with --preload and write docs/packages.md (2.5 GB, half an hour)
	$(PACKAGES)/bin/python -m tests.packages.survey

clean:  ## Remove the virtual environment and caches
	rm -rf $(VENV) .build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*
