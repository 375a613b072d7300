# make demo     trains, fine-tunes, evaluates and decodes on embedded text
# make quick    runs what one wants to know while writing, in two minutes: of
#               each table of cases the first, and the first with each variant;
#               without tests/processes/, which starts processes, and what is
#               marked as slow
# make test     runs all tests
# make lint     looks for mistakes that need no run
# make install  makes .venv by uv, with the first Python from 3.10 to 3.13 that is on
#               the path or in pyenv, or PYTHON=3.11; the ones above call it when
#               setup.py or a lock file changed; VENV=... names another folder
# make test-both  runs lint, and the tests on both stacks: in .venv-new with Python
#               3.13 or NEW=3.12, in .venv-old with 3.11 or OLD=3.10
# make lock     writes the lock files in requirements/ anew
# make clean    removes .venv and what tests and builds left behind

PYTHON ?=
NEW := 3.13
OLD := 3.11
VENV ?= .venv
STAMP := $(VENV)/.installed
export PYTHON

.PHONY: demo lint lock quick test test-both install clean FORCE

demo: $(STAMP)
	@TF_CPP_MIN_LOG_LEVEL=$${TF_CPP_MIN_LOG_LEVEL:-3} $(VENV)/bin/python -m synthesizer_mtf.demo

lint: $(STAMP)
	@$(VENV)/bin/python -m ruff check .

quick: $(STAMP)
	@$(VENV)/bin/python -m pytest -q -n 2 --dist worksteal --quick tests

# Whole files, for what their tests share, and those that take longest first.
test: $(STAMP)
	@$(VENV)/bin/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder \
	  --durations=15 tests

install: $(STAMP)

# Also where a Python is named, which may be another, or the one it has is gone.
$(STAMP): setup.py pyproject.toml $(wildcard requirements/*.txt) \
    $(if $(PYTHON),FORCE,$(shell test -x "$(VENV)/bin/python" || echo FORCE))
	@sh requirements/install.sh "$(VENV)"

FORCE:

test-both:
	@$(MAKE) VENV=$(VENV)-new PYTHON=$(NEW) lint test
	@$(MAKE) VENV=$(VENV)-old PYTHON=$(OLD) test

lock: $(STAMP)
	@$(VENV)/bin/python requirements/lock.py

clean:
	rm -rf $(VENV) $(VENV)-new $(VENV)-old $(VENV)*.lock build dist *.egg-info .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
