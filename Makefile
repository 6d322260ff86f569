# `make serve` and `make test` need nothing but Python 3.11 or later; everything else is installed into .venv.
#
#   make serve ARGS="--port 31000"      options of `instar serve`
#   make serve TORCH_INDEX=https://download.pytorch.org/whl/cpu      the small CPU build of torch
#   make serve PYTHON=python3.12        another Python
#   make test TEST_JOBS=4               test processes side by side

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
VLLM_VENV ?= $(HOME)/.cache/instar/vllm
ARGS ?=
TEST_JOBS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SERVE_STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.PHONY: help serve test test-clients lint soak soak-protocol soak-engine soak-vllm bench-first-light bench-judge bench-decode bench-serve bench-learn bench-learn-full model docs clean

help:  ## list what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

serve: $(SERVE_STAMP)  ## install if need be, and serve on http://localhost:30000/v1
	@$(BIN)/instar serve $(ARGS)

model: $(SERVE_STAMP)  ## fetch and convert the starter model (once)
	@$(BIN)/python -m instar.cli.prepare

test: lint model  ## everything that a change must pass
	$(BIN)/python -m pytest -m "not soak and not alone" -n $(TEST_JOBS) --dist loadfile
	$(BIN)/python -m pytest -m "not soak and alone"

lint: $(DEV_STAMP)  ## style, types, and who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-clients: $(DEV_STAMP) model  ## the real OpenClaw and real SDKs, fetched once; a part of soak, a quarter of an hour
	$(BIN)/python -m pytest -m clients --timeout 1800

soak: $(DEV_STAMP) model  ## the long and full-size checks
	$(BIN)/python -m pytest -m soak --timeout 7200

soak-protocol: $(DEV_STAMP)  ## those of them about HTTP: slow clients, overload, 10,000 generated requests; an hour
	$(BIN)/python -m pytest -m "soak and protocol" -s --timeout 7200

soak-engine: $(DEV_STAMP) model  ## those of them about the engine: swaps under load, cancelling, memory; an hour
	$(BIN)/python -m pytest -m "soak and engine" -s --timeout 7200

soak-vllm: $(DEV_STAMP) model  ## those against the real vLLM: its CPU build, 3 GB, goes into an environment of its own
	$(BIN)/python -m tests.kit.vllm_env $(VLLM_VENV) $(TORCH_INDEX)
	TEST_VLLM=$(VLLM_VENV)/bin/vllm $(BIN)/python -m pytest -m vllm --timeout 3600

bench-first-light: $(DEV_STAMP) model  ## how fast it learns; results in bench/results
	$(BIN)/python -m bench.first_light $(ARGS)

bench-judge: $(DEV_STAMP)  ## how well reactions are read, by judge, language and kind
	$(BIN)/python -m bench.judge $(ARGS)

bench-decode: $(DEV_STAMP) model  ## tokens a second on this processor: transformers, torch, native; some minutes
	$(BIN)/python -m bench.decode $(ARGS)

bench-serve: $(DEV_STAMP) model  ## how fast it serves, what learning costs those who chat; half an hour. ARGS="--vllm PATH"
	$(BIN)/python -m bench.serve $(ARGS)

bench-learn: $(DEV_STAMP) model  ## what it learns from simulated users, and at what price; a quarter of an hour
	$(BIN)/python -m bench.learn --short $(ARGS)

bench-learn-full: $(DEV_STAMP) model  ## every arm, every user, both paths; many hours, may be stopped and started again
	$(BIN)/python -m bench.learn --full $(ARGS)

docs: $(DEV_STAMP)  ## write the generated parts of the documentation anew
	$(BIN)/python -m tests.kit.docs

clean:  ## remove the environment and all caches; data folders are left alone
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Instar needs Python 3.11 or later and '$(PYTHON)' is not. Name another: make PYTHON=/path/to/python3.12" >&2; \
	  exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "No virtual environment could be made. On Debian and Ubuntu: apt install python3-venv" >&2; \
	  rm -rf $(VENV); exit 1; }

$(SERVE_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(if $(TORCH_INDEX),$(PIP) install -c constraints.txt --index-url $(TORCH_INDEX) torch)
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(DEV_STAMP): $(SERVE_STAMP)
	$(PIP) install -c constraints.txt -e '.[dev,bench]'
	@touch $@
