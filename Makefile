# make demo     trains, fine-tunes, evaluates and decodes on embedded text
# make quick    runs the quick tests, in a minute and a half. From each table of cases
#               it takes the first case, and the first case with each variant. It skips
#               slow tests and tests/processes/, which starts processes.
# make test     runs all tests, but those of studies/
# make test-studies  runs the tests of studies/
# make test-pytorch  compares exported models in PyTorch with ours, and runs the study's
#               trainings in PyTorch. It makes .venv-pytorch (5 GB);
#               TRANSFORMERS=5.17.0 names another release.
# make lint     finds mistakes without running code
# make install  makes .venv with uv. Its Python is PYTHON=3.11, or by default the first
#               from 3.10 to 3.13 on the path or in pyenv. VENV=... names another
#               folder. If setup.py or a lock file changed, the commands above call it.
# make test-both  runs lint, and the tests of both targets above on both stacks: in
#               .venv-new with Python 3.13 or NEW=3.12, in .venv-old with 3.11 or OLD=3.10
# make docs     runs the notebooks, and makes the site of docs/ in build/site
# make release  writes the version into CITATION.cff, and makes dist/
# make lock     rewrites the lock files in requirements/
# make clean    removes .venv and the files that tests and builds left

PYTHON ?=
NEW := 3.13
OLD := 3.11
VENV ?= .venv
TRANSFORMERS ?= 4.57.6
TORCH ?= 2.14.1
STAMP := $(VENV)/.installed
export PYTHON

.PHONY: demo docs lint lock quick release test test-studies test-pytorch test-both install \
  clean FORCE

demo: $(STAMP)
	@TF_CPP_MIN_LOG_LEVEL=$${TF_CPP_MIN_LOG_LEVEL:-3} $(VENV)/bin/python -m synthesizer_mtf.demo

lint: $(STAMP)
	@$(VENV)/bin/python -m ruff check .
	@$(VENV)/bin/python .ci/check_types.py

quick: $(STAMP)
	@$(VENV)/bin/python -m pytest -q -n 2 --dist worksteal --quick tests

# A worker runs whole files, whose tests share fixtures. The longest files come first.
test: $(STAMP)
	@$(VENV)/bin/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder \
	  --durations=15 tests

test-studies: $(STAMP)
	@$(VENV)/bin/python -m pytest -q -n 2 --dist loadfile studies/tests

test-pytorch: $(STAMP)
	@$(VENV)/bin/uv venv --quiet --allow-existing --python $(VENV)/bin/python $(VENV)-pytorch
	@$(VENV)/bin/uv pip install --quiet --python $(VENV)-pytorch/bin/python torch==$(TORCH) \
	  transformers==$(TRANSFORMERS) sentencepiece protobuf accelerate onnxscript onnxruntime
	@$(VENV)/bin/python -m pytest -q --pytorch=$(VENV)-pytorch/bin/python tests/pytorch \
	  studies/tests/pytorch

install: $(STAMP)

# Also runs if PYTHON names a Python, which may differ from the environment's, or if the
# environment's Python is gone.
$(STAMP): setup.py pyproject.toml $(wildcard requirements/*.txt) \
    $(if $(PYTHON),FORCE,$(shell test -x "$(VENV)/bin/python" || echo FORCE))
	@sh requirements/install.sh "$(VENV)"

FORCE:

test-both:
	@$(MAKE) VENV=$(VENV)-new PYTHON=$(NEW) lint test test-studies docs
	@$(MAKE) VENV=$(VENV)-old PYTHON=$(OLD) test test-studies test-pytorch

docs: $(STAMP)
	@sh requirements/install.sh "$(VENV)" docs
	@$(VENV)/bin/python .ci/make_docs.py

release: $(STAMP)
	@$(VENV)/bin/python .ci/release.py

lock: $(STAMP)
	@$(VENV)/bin/python requirements/lock.py

clean:
	rm -rf $(VENV) $(VENV)-new $(VENV)-old $(VENV)*-pytorch $(VENV)*.lock build dist *.egg-info .pytest_cache .hypothesis \
	  .mypy_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
