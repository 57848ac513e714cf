# `make check` is what CI runs first. PYTHON may name the interpreter of any environment: make check PYTHON=.venv/bin/python
PYTHON ?= python
CHAOS ?= tests/chaos
CHAOS_WORKERS ?= 3
SEEDS ?= 2000
FUZZ_SECONDS ?= 60
WORKERS ?= auto
SLOW_WORKERS ?= 3
REFERENCE ?= bunqueue
# 114 wants a list of all startable functions, 128 does not see a task_status that is passed on, 124 dislikes routes that
# need not wait (the framework wants them async), 9xx would ask for a checkpoint in every function. It is slow, so it is
# not shown files in which nothing is async.
ASYNC_OFF = ASYNC114,ASYNC124,ASYNC128,ASYNC9

.PHONY: check fmt lint types test test-slow test-long peers golden chaos sim fuzz bench bench-reads bench-live

# What needs one processor each goes side by side.
check:
	$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint types golden
	$(MAKE) --no-print-directory test

fmt:
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m flake8_async --disable $(ASYNC_OFF) $$(grep -rlE --include='*.py' '\basync\b|\bawait\b|\btrio\.' bunqueue_trio)
	$(PYTHON) -c 'from importlinter.cli import lint_imports_command; lint_imports_command()'

types:
	$(PYTHON) -m mypy

test:
	$(PYTHON) -m pytest -n $(WORKERS) -m 'not slow and not long'

# Most of them wait for processes, so more run at a time than there are processors; what fails then has to pass alone,
# where nothing else takes the machine's time. What measures time comes last, alone.
test-slow:
	$(PYTHON) -m pytest -n $(SLOW_WORKERS) --dist worksteal -m 'slow and not alone and not long and not chaos' || \
	$(PYTHON) -m pytest --last-failed --last-failed-no-failures none -m 'slow and not alone and not long and not chaos'
	$(PYTHON) -m pytest -m 'alone and not long and not chaos'

test-long:
	$(PYTHON) -m pytest -m long

# The published clients, all of them; the npm packages are installed once, into the user's cache.
peers:
	$(PYTHON) -m tests.peers.packages
	PEERS_REQUIRED=1 $(PYTHON) -m pytest -n $(SLOW_WORKERS) --dist loadfile tests/peers

golden:
	$(PYTHON) scripts/goldens.py

# SOAK=10m, SOAK=24h: so long for what is driven by time. CHAOS names suites, CHAOS_SEED repeats the choices of a run.
# 5 is pytest's word for "none selected".
chaos:
	$(PYTHON) -m pytest -n $(CHAOS_WORKERS) --dist worksteal -m 'not alone' $(CHAOS) || [ $$? -eq 5 ]
	$(PYTHON) -m pytest -m alone $(CHAOS) || [ $$? -eq 5 ]

# Seeded histories of the server on a simulated disk: make sim SEEDS=20000. One of them: python -m tests.simulation SEED
sim:
	$(PYTHON) -m tests.simulation --seeds $(SEEDS)

fuzz:
	$(PYTHON) scripts/fuzz.py --seconds $(FUZZ_SECONDS)

bench-reads:
	$(PYTHON) scripts/readbench.py --start '$(PYTHON) -m bunqueue_trio'

bench-live:
	$(PYTHON) scripts/livebench.py --seconds 60 --start '$(PYTHON) -m bunqueue_trio'

bench:
	$(PYTHON) scripts/wirebench.py duel --a '$(PYTHON) -m bunqueue_trio' --b '$(REFERENCE)'
