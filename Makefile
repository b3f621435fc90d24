# make demo and make test work on a fresh machine: both make the environment first.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python

# A local Ray cluster turns token authentication on by writing a file into the home directory, and the next
# cluster then behaves differently. Say which one is meant.
export RAY_AUTH_MODE ?= disabled
export RAY_USAGE_STATS_ENABLED ?= 0

.PHONY: help setup demo test test-fast lint format bench sim wheel-check clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup:  ## make .venv/ with everything that the tests and the demo need (does nothing when it is there)
	@$(PYTHON) tools/setup_venv.py

demo: setup  ## train, serve, preempt, resume and recover on an emulated cluster (5 minutes; DEMO_ARGS=--short)
	$(RUN) -m examples.demo $(DEMO_ARGS)

test: setup  ## all tests, real Ray on CPU included (PYTEST_ARGS=...)
	$(RUN) tools/run_tests.py $(PYTEST_ARGS)

test-fast: setup  ## the tests that start no Ray cluster (minutes)
	$(RUN) -m pytest -n 2 --dist worksteal -m "not ray" $(PYTEST_ARGS)

lint: setup  ## style, format and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy --strict rayorch

format: setup  ## put the code into the format that lint asks for
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

bench: setup  ## one benchmark: make bench NAME=gang_start
	@test -n "$(NAME)" || { echo "usage: make bench NAME=gang_start"; ls benchmarks; exit 2; }
	$(RUN) -m benchmarks.$(NAME) $(BENCH_ARGS)

sim: setup  ## 2,000 simulated lives, crashes at every write, scenarios, kills and references, no Ray (LIVES=...)
	RAYORCH_LIVES=$(or $(LIVES),2000) $(RUN) -m pytest tests/sim tests/core tests/policies $(PYTEST_ARGS)

wheel-check: setup  ## build the wheel and look into it
	$(RUN) -m pytest tests/test_packaging.py

clean:  ## remove what builds and tests left, .venv excepted
	rm -rf build dist rayorch.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
