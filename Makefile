# `make demo` and `make test` each set up what they need in .venv, once, and then do their job.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint bench clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PINNED := pyproject.toml constraints.txt
BASE := $(VENV)/.installed-base
FULL := $(VENV)/.installed-full

help:  ## list the targets
	@sed -nE 's/^([a-z]+):.*## (.*)$$/make \1\t\2/p' Makefile | expand -t 14

setup: $(FULL)  ## everything that a developer needs, in .venv

demo: $(BASE)  ## compare the methods on held-out tasks, with the shipped models (ARGS="..." goes to amc demo)
	$(BIN)/amc demo $(ARGS)

test: $(FULL)  ## what CI runs: ruff, mypy, pytest
	.ci/check
	.ci/test

lint: $(FULL)  ## ruff and mypy only
	.ci/check

bench: $(FULL)  ## every benchmark, one after another
	for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python "$$file"; done

clean:  ## remove .venv, caches and builds (results stay)
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks .coverage .langgraph_api
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed, and $(PYTHON) is " + sys.version.split()[0] + ": make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade pip

# The demo needs neither torch nor the tools of a developer.
$(BASE): $(PINNED) | $(BIN)/python
	$(PIP) install --quiet -c constraints.txt -e .
	touch $@

# torch comes first and alone: a local build of this version (CPU, other CUDA) is then kept by what follows.
$(FULL): $(PINNED) | $(BIN)/python
	$(PIP) install --quiet "$$(grep '^torch==' constraints.txt)"
	$(PIP) install --quiet -c constraints.txt -e '.[train,dev,sqlite]'
	touch $(BASE) $@
