# make demo and make test are all that a new machine needs (Python 3.11 or newer, pip, make).
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --constraint requirements/lock.txt

.PHONY: demo test env lint bench bouts docs board clean

demo: .venv/.demo
	$(BIN)/bakeoff run fdfi --out build/demo

test: env
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile

env: .venv/.all

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: env
	for file in benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

# The default bouts of all methods with the paper's claims; their reports are kept under docs/.
bouts: env
	for method in $$(sed -n 's/^slug = "\(.*\)"/\1/p' src/bakeoff/*/*/card.toml); do \
	  $(BIN)/bakeoff run $$method --claims --out docs/reports/$$method || exit 1; done
	$(BIN)/python docs/generate.py

docs: env
	$(BIN)/python docs/generate.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

board: env
	$(BIN)/bakeoff board docs/reports/* --out build/board

clean:
	rm -rf build site

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.demo: .venv/bin/python pyproject.toml requirements/lock.txt
	$(PIP) --editable '.[explain]'
	touch $@

.venv/.all: .venv/bin/python pyproject.toml requirements/lock.txt requirements/data.txt
	$(PIP) --editable '.[all,ray,dev]'
	$(BIN)/pip install --quiet --no-deps --requirement requirements/data.txt
	touch $@ .venv/.demo
