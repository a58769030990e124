# make demo | test | check | test-all | setup : each works on a fresh checkout with Python 3.11 and nothing else.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
RUN ?= outputs/demo-$(shell date +%Y%m%d-%H%M%S)

.PHONY: setup demo test test-all check format protos clean

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

setup: $(VENV)/.ready

demo: setup
	$(BIN)/phalanx launch demo --job.dump_folder $(RUN)

test: setup
	$(BIN)/python -m pytest -m 'not long and not gpu'

test-all: setup
	$(BIN)/python -m pytest -m 'not gpu'

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

protos: setup
	$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. --grpc_python_out=. lighthouse/protos/*.proto

clean:
	rm -rf $(VENV) build dist *.egg-info outputs
