.DEFAULT_GOAL := help
.PHONY: help setup demo test test-capabilities lint format docs nightly mutants gpu ci constraints clean

PYTHON ?= python3
TIMES ?= 3
NUMERIC := tests/nn tests/ops tests/strategies tests/suites
VENV := .venv
BIN := $(VENV)/bin
VENV_MADE := $(VENV)/.made
USER_READY := $(VENV)/.ready-user
DEV_READY := $(VENV)/.ready-dev
PIP := $(BIN)/python -m pip install -q -c constraints.txt

help: ## list the targets
	@echo "usage: make TARGET [ARGS='...'] [PYTHON=python3.12]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-17s %s\n", $$1, $$2 }' Makefile

setup: $(DEV_READY) ## set up for development, in .venv

demo: $(USER_READY) ## set up, then train a network on WordNet (117,659 nodes)
	$(BIN)/outgrow train wordnet $(ARGS)

test: $(DEV_READY) ## set up, then run every test that is not slow
	@sh scripts/test.sh $(BIN)/python $(ARGS)

test-capabilities: $(DEV_READY) ## run numeric tests TIMES times (3) as on each of several processors
	sh scripts/capabilities.sh $(TIMES) sh scripts/test.sh $(BIN)/python $(or $(ARGS),$(NUMERIC))

lint: $(DEV_READY) ## check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEV_READY) ## format the code and sort its imports
	$(BIN)/ruff check --select I --fix .
	$(BIN)/ruff format .

docs: $(DEV_READY) ## build the documentation, in build/site
	$(BIN)/mkdocs build --strict

nightly: $(DEV_READY) ## run all tests, the slow ones and all mutants too
	OUTGROW_REAL_PROCESSES=1 $(BIN)/python -m pytest -n auto --dist loadfile -m 'slow or not slow' $(ARGS)

mutants: $(DEV_READY) ## run every mutant, the slow ones too; each must be found
	OUTGROW_KERNELS=serial $(BIN)/python -m pytest -n auto --dist loadfile -m mutant $(ARGS)

gpu: ## try a CUDA device: its kernels, the tests marked gpu, and how fast it is (in .venv-gpu)
	@sh scripts/gpu.sh "$(PYTHON)" $(ARGS)

ci: ## do what continuous integration does
	.ci/run

constraints: ## pin the newest releases of all dependencies (torch as TORCH says)
	sh scripts/pin.sh "$(PYTHON)" "$(TORCH)"

clean: ## remove the virtual environment, caches and build outputs
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV_MADE):
	@sh scripts/python_version.sh "$(PYTHON)"
	@echo "setting up $(VENV) (once; takes a few minutes)" >&2
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(USER_READY): pyproject.toml constraints.txt | $(VENV_MADE)
	$(PIP) -e .
	@touch $@

$(DEV_READY): pyproject.toml constraints.txt | $(VENV_MADE)
	$(PIP) -e '.[dev,pyg]'
	@touch $(USER_READY) $@
