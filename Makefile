# make demo     trains, fine-tunes, evaluates and decodes on embedded text
# make quick    runs what one wants to know while writing, in two minutes: of
#               each table of cases the first, and the first with each variant;
#               without tests/commands/, which starts processes, and what is
#               marked as slow
# make test     runs all tests
# make lint     looks for mistakes that need no run
# make install  makes .venv, with the newest of Python 3.10 and 3.11 at hand as
#               PYTHON=python3.11; those above call it when setup.py changed
# make clean    removes .venv and what tests and builds left behind

PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
# One sentence on standard error, and exit status 1.
CHECK := import sys; v = sys.version_info[:2]; \
  (3, 10) <= v < (3, 12) or sys.exit("synthesizer_mtf needs Python 3.10 \
  or 3.11, because TensorFlow 2.15 supports no other, but $(PYTHON) is Python \
  %d.%d: name one of those, as in make PYTHON=python3.11." % v)

.PHONY: demo lint quick test install clean

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

# pip is renewed first: that of older Pythons takes minutes to resolve this stack.
$(STAMP): setup.py pyproject.toml
	@test -x $(VENV)/bin/python || command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON): name a \
	Python 3.10 or 3.11, as in make PYTHON=/path/of/python3.11." >&2; exit 1; }
	@test -x $(VENV)/bin/python || $(PYTHON) -c '$(CHECK)'
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV): 3 GB, about three minutes."
	@$(VENV)/bin/python -m pip install -qq --upgrade 'pip>=24'
	@$(VENV)/bin/python -m pip install -qq --editable '.[test]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
