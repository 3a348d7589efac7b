# Two commands do everything on a machine that has only Python (3.11 or newer) and make:
#   make demo    the product, with a real Kafka, a paid provider that keeps its own bill, and a worker that gets killed
#   make test    format, lint, types and all tests (what CI runs)
# The distribution's Python first, where it is new enough and can make environments: it is built with profile-guided optimisation, and
# runs this a fifth faster than one that was compiled plainly. Any other: make PYTHON=python3.13 ...
PYTHON ?= $(shell for python in /usr/bin/python3 python3; do $$python -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' \
	2>/dev/null && echo $$python && exit; done; echo python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

# Compiled modules are kept beside the packages, whatever the shell says: the tests start hundreds of processes, each of which would
# else compile for half a second.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/pycache

.PHONY: demo test test-deep check lint types bench soak explore clean

demo: $(VENV)/.demo
	$(BIN)/paidonce demo $(ARGS)

test: $(VENV)/.test check
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup $(ARGS)

# All of that, with the variants that take long and ten times the examples; some half an hour.
test-deep: $(VENV)/.test check
	HYPOTHESIS_PROFILE=deep $(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "deep or not deep" $(ARGS)

check: lint types

lint: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(VENV)/.test
	$(BIN)/mypy

# Measurements, a JSON line each; takes some ten minutes.
bench: $(VENV)/.test
	$(BIN)/python -m tests.bench.figures $(ARGS)

# Twenty random kills in a run of three minutes, once with a provider that honours keys and once without repeating.
soak: $(VENV)/.test
	$(BIN)/python -m tests.bench.soak --repeat with-key $(ARGS)
	$(BIN)/python -m tests.bench.soak --repeat never $(ARGS)

# The receipt protocol on the real engine, through every order of steps and faults, as deep as ten minutes allow; `make test` has the
# shallow part. For more: make explore ARGS="--minutes 60 --faults 5 --crashes 2".
explore: $(VENV)/.test
	$(BIN)/python -m tests.explorer $(ARGS)

# Workers, broker and provider are disturbed by a seed's plan while runs go on; the seed is printed, and gives the same plan again.
KILLS ?= 100
SECONDS ?= 300
chaos: $(VENV)/.test
	$(BIN)/python -m tests.bench.chaos --kills $(KILLS) --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	$(PIP) setuptools
	touch $@

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/.made
	$(PIP) --no-build-isolation -e '.[local]'
	touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/.made
	$(PIP) --no-build-isolation -e '.[local,test]'
	touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
