# Everything runs in a virtual environment of its own, made on first use. An interpreter is taken only
# if it runs: a name on the PATH can be a version switcher's stub for a version that is not there.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(not sys.version_info >= (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
# One environment that grows: what make quick needs, then make demo, make test, make long.
QUICK_READY := $(VENV)/.ready-quick
EXAMPLES_READY := $(VENV)/.ready-examples
READY := $(VENV)/.ready
LONG_READY := $(VENV)/.ready-long
LOCK := requirements.lock
# pip compiles on one core whatever it installs, torch with 2,000 modules; this is left to us.
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-compile -c $(LOCK)
PYTEST := $(BIN)/python -m tests.run

.PHONY: help setup demo test quick lint types portable bench gpu kubernetes simulate mutants diagnosis chaos long newer dist docs pages packages lock clean

help:  ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

setup: $(READY)  ## Make the virtual environment of `make test` and `make demo`

$(VENV)/pyvenv.cfg:
	@test -n "$(PYTHON)" || { echo "no python3 of version 3.11 or newer with the venv module found (Debian:" \
		"apt-get install python3-venv); say which with make PYTHON=/path/to/python3"; exit 1; }
	@echo "a virtual environment in $(VENV), by $(PYTHON)"
	@$(PYTHON) -m venv --clear $(VENV) || \
		{ echo "$(PYTHON) could not make a virtual environment: on Debian, apt-get install python3-venv"; exit 1; }

# Dependency groups need pip 25.1.
$(QUICK_READY): pyproject.toml $(LOCK) | $(VENV)/pyvenv.cfg
	$(INSTALL) -q pip
	$(INSTALL) -q -e . --group quick
	@touch $@

$(EXAMPLES_READY): pyproject.toml $(LOCK) | $(VENV)/pyvenv.cfg
	@echo "1 of 2: torch, which is large, and numpy"
	$(INSTALL) --progress-bar on -e '.[examples]'
	@echo "2 of 2: compiling the modules of torch that the examples import: about a minute"
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -c 'import torch._dynamo'
	@touch $@

$(READY): $(QUICK_READY) $(EXAMPLES_READY)
	@echo "the tools of the tests"
	$(INSTALL) --progress-bar on --group test
	@echo "compiling modules"
	@$(BIN)/python -m compileall -qq -j 0 -x '/(tests|pip|mypy|mypyc|kubernetes/aio|torch|sympy|networkx)/' $(VENV)/lib || true  # some can't be
	@touch $@

$(LONG_READY): $(READY)
	$(INSTALL) --progress-bar on --group long --group docs --group bench
	@touch $@

demo: $(EXAMPLES_READY)  ## Train on 4 workers, kill one, watch it resume; launch again, warm; the same with torchrun
	$(BIN)/python examples/demo.py

# mypy runs on one processor and needs no torch: it checks while torch is installed.
test: $(QUICK_READY)  ## Everything except `make long`: format, lint, types, layers, tests
	@$(MAKE) --no-print-directory -j2 setup lint types
	$(PYTEST) $(RETRY)

quick: $(QUICK_READY) lint types  ## Format, lint, types and the pure tests: a minute, without torch
	$(PYTEST) --quick

lint: $(QUICK_READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(QUICK_READY)
	$(BIN)/mypy

# What a job of one node meets; tests/portable/exceptions.py names what can't hold there.
ONE_NODE := tests/test_*.py tests/host tests/cli tests/differential tests/portable tests/schedulers/test_local*.py
portable: setup  ## Single-node tests on a Linux that imitates macOS
	RELIGHT_TESTS=portable $(BIN)/python -m pytest -n 5 --dist loadfile -rs -m "not long" --ignore=tests/test_layers.py $(ONE_NODE)

bench: $(LONG_READY)  ## Measure against torchrun; writes benchmarks/results/
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.warm
	$(BIN)/python -m benchmarks.workers
	$(BIN)/python -m benchmarks.survivors
	$(BIN)/python -m benchmarks.study
	$(BIN)/python -m benchmarks.submit
	$(BIN)/python -m benchmarks.nodes
	$(BIN)/python -m benchmarks.scale

# The torch that is installed there, not the one of $(VENV), which may have no CUDA.
gpu:  ## Check relight on a machine with one NVIDIA GPU, with the torch of PYTHON; writes .build/gpu/
	@mkdir -p .build/gpu
	PYTHONPATH=src $(if $(filter file,$(origin PYTHON)),python3,$(PYTHON)) -m benchmarks.gpu \
		--out .build/gpu/table.md --logs .build/gpu

# In the namespace of the current context; a job whose pods don't come costs its time limit.
kubernetes: setup  ## Check relight on the cluster of KUBECONFIG (kind, k3s, any), and print a table
	$(BIN)/python -m tests.real_cluster $(KUBECONFIG)

SEEDS ?= 10000
N ?= 1000
simulate: setup  ## Simulation test: run the simulated group with SEEDS seeds
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

mutants: setup  ## Mutation test: disable each fencing rule; the simulation must catch it within SEEDS seeds
	$(BIN)/python -m tests.simulation.mutants --seeds $(SEEDS)

diagnosis: $(LONG_READY)  ## Accuracy of failure reports, compared with torchrun; writes docs/diagnosis.md
	$(BIN)/python -m tests.diagnosis --torchrun --write

chaos: setup  ## Chaos test: N local jobs whose processes are killed or stopped at random
	$(BIN)/python -m tests.chaos --runs $(N)

long: $(LONG_READY)  ## Tests that take minutes to hours
	$(BIN)/python -m pytest -m long
	$(MAKE) --no-print-directory newer

# The wheel of a newer torch from PyPI brings the CUDA libraries: 6 GB.
TORCH ?= 2.14.1
NEWER := .venv-torch-$(TORCH)
WITH_TORCH := tests/differential tests/torch_launcher tests/shim tests/test_survivors.py tests/test_hangs.py
$(NEWER)/.ready: pyproject.toml $(LOCK)
	$(PYTHON) -m venv --clear $(NEWER)
	grep -v '^torch==' $(LOCK) >$(NEWER)/lock
	$(NEWER)/bin/python -m pip install -q --disable-pip-version-check -c $(NEWER)/lock pip
	$(NEWER)/bin/python -m pip install -c $(NEWER)/lock torch==$(TORCH) -e . --group test
	@touch $@

newer: $(NEWER)/.ready  ## Tests with another version of torch, TORCH=2.14.1 (6 GB)
	$(NEWER)/bin/python -m pytest -n 2 -m "not long or needs_torch or needs_torch_reconfigure" $(WITH_TORCH)

dist: setup  ## Build the wheel, the sdist and the one-file launcher, and try them on every installed Python
	$(BIN)/python -m tests.release

docs: $(LONG_READY)  ## Build the documentation site in .build/site
	$(BIN)/python -m documentation.site

pages: setup  ## Write the generated pages: flags, failure guide, limits, README figures and picture
	$(BIN)/python -m documentation.from_torchrun
	$(BIN)/python -m documentation.failures
	$(BIN)/python -m documentation.events
	$(BIN)/python -m documentation.limits
	$(BIN)/python -m documentation.group
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

lock: $(LONG_READY)  ## Pin the newest versions of all dependency groups in requirements.lock
	$(BIN)/python -m tests.lock

clean:  ## Remove the virtual environments and caches
	rm -rf $(VENV) .venv-torch-* .build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*
