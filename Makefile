# Each target does all of its own set-up. Python 3.11 or newer and make are all that must be there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Small networks gain nothing from more threads, and two processes of one thread each keep two cores busy.
export OMP_NUM_THREADS ?= 1

.PHONY: venv demo test test-slow docs wheel clean

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

demo: venv
	$(BIN)/reprise demo

test: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -n 2

test-slow: venv
	$(BIN)/python -m pytest -q -m slow

docs: venv
	PYTHONPATH=src $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

# The wheel in an environment that has nothing else of ours: what a user installs must run.
wheel: venv
	rm -rf build dist
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	$(PYTHON) -m venv build/empty
	build/empty/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt dist/*.whl
	cd build && empty/bin/reprise demo --steps 2 --size 16 --buildings 1,1,1 --views 32 --sequence depth,normal

clean:
	rm -rf site $(VENV) build dist *.egg-info src/*.egg-info
