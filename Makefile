# The commands of this project.  `make test` is the one to run after a change.

PYTHON ?= python3

.PHONY: test test-long bench matrix lint

# every test, and every example in the modules and the pages
test:
	$(PYTHON) -m tests

# the same, and the tests that take minutes
test-long:
	$(PYTHON) -m tests --long

# how fast it is
bench:
	PYTHONPATH=. $(PYTHON) tests/bench.py

# the tests on every Python that is found, the lint, and the restricted environments
matrix:
	$(PYTHON) -m tests.portability.matrix

# what the portable core may not use
lint:
	$(PYTHON) -m tests.portability.subset_lint
