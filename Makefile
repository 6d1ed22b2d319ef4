# Everything runs in a virtual environment of its own, made on first use. An interpreter is taken only
# if it runs: a name on the PATH can be a version switcher's stub for a version that is not there.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(not sys.version_info >= (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Most tests wait most of the time; those of a file stay together, as they share servers.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadfile

.PHONY: help setup demo test check lint types unit bench simulate long clean

help:  ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

setup: $(READY)  ## Make the virtual environment with everything that tests and examples need

$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "no python3 of version 3.11 or newer with the venv module found (Debian:" \
		"apt-get install python3-venv); say which with make PYTHON=/path/to/python3"; exit 1; }
	@$(BIN)/python -c 'import pip' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV) || \
		{ echo "$(PYTHON) could not make a virtual environment: on Debian, apt-get install python3-venv"; exit 1; }
	@echo "setting up $(VENV): torch and the tools, a minute or two"
	$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[dev,examples,bench]'
	@touch $(READY)

demo: setup  ## Train on 4 workers, kill one in the middle, watch the restart and the resume
	$(BIN)/python examples/demo.py

test: setup lint types  ## Everything: format, lint, types, layers, all tests
	$(PYTEST) -m "not long"

check: setup lint types unit  ## The fast part of the tests, below 2 minutes

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

unit: setup
	$(PYTEST) -m "not slow and not long"

bench: setup  ## Measure against torchrun; writes benchmarks/results/
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.warm
	$(BIN)/python -m benchmarks.workers
	$(BIN)/python -m benchmarks.study
	$(BIN)/python -m benchmarks.submit
	$(BIN)/python -m benchmarks.nodes
	$(BIN)/python -m benchmarks.scale

SEEDS ?= 10000
simulate: setup  ## Run the simulated group with SEEDS seeds
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

long: setup  ## Tests of minutes to hours
	$(BIN)/python -m pytest -m long

clean:  ## Remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*
