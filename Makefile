# One command for each habit. Everything happens in .venv, which is made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint bench docs clean

demo: $(READY)  ## trains with a server over a slow link, without and with codecs, and writes a report
	$(BIN)/thinpipe demo

test: $(READY)  ## every test, the commands of the documentation included; two files at a time
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

lint: $(READY)  ## style and types
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy

bench: $(READY)  ## overhead and speed-up, recorded in results/
	$(BIN)/thinpipe bench pipe --output results/pipe.json

docs: $(READY)  ## the pages that are generated
	$(BIN)/python -m typer thinpipe.cli utils docs --name thinpipe --output docs/cli.md
	$(BIN)/thinpipe bench page
	$(BIN)/thinpipe reproduce page

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache src/thinpipe/kernels/__pycache__

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)
