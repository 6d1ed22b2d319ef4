# Everything runs in a virtual environment of its own, made on first use.
PYTHON ?= $(shell command -v python3.13 || command -v python3.12 || command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup demo test check lint types unit bench long clean

help:  ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

setup: $(READY)  ## Make the virtual environment with everything that tests and examples need

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "relight needs Python 3.11 or newer; say which with make PYTHON=/path/to/python3"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ echo "no venv module: on Debian, apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,examples,bench]'
	@touch $(READY)

demo: setup  ## Train on 4 workers, kill one in the middle, watch the restart and the resume
	$(BIN)/python examples/demo.py

test: setup lint types  ## Everything: format, lint, types, layers, all tests
	$(BIN)/python -m pytest -m "not long"

check: setup lint types unit  ## The fast part of the tests, below 2 minutes

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

unit: setup
	$(BIN)/python -m pytest -m "not slow and not long"

bench: setup  ## Measure against torchrun; writes benchmarks/results/
	$(BIN)/python -m benchmarks

long: setup  ## Tests of minutes to hours
	$(BIN)/python -m pytest -m long

clean:  ## Remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*
