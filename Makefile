# Two commands do everything on a fresh machine: `make demo` and `make test`.
# An active virtual or conda environment is used as it is (its torch and torch_npu stay); otherwise .venv is made.

PYTHON ?= python3
ifneq ($(VIRTUAL_ENV)$(CONDA_PREFIX),)
ENV := $(or $(VIRTUAL_ENV),$(CONDA_PREFIX))
else
ENV := .venv
endif
BIN := $(ENV)/bin
DEMO ?= demo
PEERS := .venv-peers

.PHONY: help demo test lint peers install schemas clean

help:
	@echo "make demo     make a small media folder, scan, build and verify it"
	@echo "make test     everything that is checked before a change lands"
	@echo "make lint     ruff, mypy, import floors"
	@echo "make schemas  write schemas/ from the code"
	@echo "make clean    remove what these commands made"

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("tessera-mm needs Python 3.11 or newer; set PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip

$(ENV)/.tessera-core: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(ENV)/.tessera-test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[test]"
	@touch $@ $(ENV)/.tessera-core

install: $(ENV)/.tessera-core

demo: $(ENV)/.tessera-core
	$(BIN)/python tools/demo.py $(DEMO)

# Other libraries' readers pull pins of their own: they live apart, and the tests that need them are skipped without.
peers:
	@[ -e $(PEERS)/.complete ] || { $(PYTHON) -m venv $(PEERS) \
	  && $(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip \
	  && $(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 datasets 'megatron-energon[av_decode]' pillow \
	  && touch $(PEERS)/.complete; } || echo "peers: could not be installed (offline?); the tests that need them will be skipped"

test: $(ENV)/.tessera-test peers
	$(BIN)/python -m pytest

lint: $(ENV)/.tessera-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

schemas: $(ENV)/.tessera-core
	$(BIN)/python tools/export_schemas.py

clean:
	rm -rf .venv $(PEERS) $(DEMO) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
