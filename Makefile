# `make` alone prints the targets. A fresh machine needs Python 3.11 and make, nothing else.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-quick
.PHONY: test-drawn test-faults test-gpu test-kills test-keras test-libraries test-schedulers test-slim
.PHONY: test-versions
.PHONY: keras-tests
.PHONY: notebook docs dist release lint lock clean

PYTHON ?= python3
UV_VERSION := 0.13.9

UV := .venv/bin/uv
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
  --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade)
# The tests of `make test`, by the marks in pyproject.toml; `make test-all` has all of them.
WHICH := not exhaustive
# In the order of tests/conftest.py, and not by their numbers of tests.
TWO_AT_A_TIME := --numprocesses 2 --dist loadfile --no-loadscope-reorder
# Named after PYTHON, so that asking for another Python makes a new .venv.
MADE := .venv/.made-by-$(notdir $(PYTHON))
INSTALLED := $(MADE)-installed

help: ## Print this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "The first run installs into .venv. Another Python: PYTHON=python3.12 make test"

demo: $(INSTALLED) ## Train LeNet on handwritten digits, on two replicas (about a minute).
	@echo "Training LeNet on scikit-learn's handwritten digits, on two replicas"
	@.venv/bin/python -m models.recipes.lenet_digits

# The programs in a run of their own: theirs computes in one thread (see their conftest.py). Other
# launchers have a target of their own.
test: lint keras-tests .venvs/deploy/installed .venvs/profile/installed ## Check the style and the types, then run the tests of every promise.
	@echo "Running the test suite$(if $(WHICH), ($(WHICH))), two files at a time"
	@.venv/bin/python -m pytest $(TWO_AT_A_TIME) -m "$(WHICH)" \
	  --ignore tests/programs --ignore tests/schedulers --ignore tests/slim
	@.venv/bin/python -m pytest $(TWO_AT_A_TIME) -m "$(WHICH)" tests/programs

test-all: WHICH :=
test-all: test test-versions test-libraries test-schedulers test-slim ## Run what is exhaustive as well, older versions, other libraries and launchers.

# Python 3.11 runs the tests a fifth slower if it counts lines, so it does so only if asked.
test-quick: lint ## Check the style and the types, then run the tests that need no cluster (COVERAGE=1: lines run).
	@echo "Running the tests that are quick, two files at a time"
	@.venv/bin/python -m pytest $(TWO_AT_A_TIME) -m "not processes and not thorough and not exhaustive" \
	  $(if $(COVERAGE),--cov kerasdist --cov-report=)
ifdef COVERAGE
	@echo "Lines that these tests run, of the files that they run least, and of all"
	@.venv/bin/python -m coverage report --sort=cover | grep -v ' 0%' | sed -n '1,22p;$$p'
endif

test-faults: $(INSTALLED) ## Inject every fault into a job, and print what became of it (ten minutes).
	@.venv/bin/python -m tests.cluster.fault_table $(FAULTS)

# On a machine without GPUs it says so. TensorFlow brings CUDA with the extra.
test-gpu: $(INSTALLED) ## Measure this machine's GPUs, as a table for an issue (ten minutes; CPUS=2: logical CPUs).
	@if test -z "$(CPUS)" && command -v nvidia-smi > /dev/null; then \
	  $(UV) pip install --quiet --python .venv --editable '.[gpu]'; fi
	@.venv/bin/python benchmarks/gpus.py $(if $(CPUS),--cpus $(CPUS))

test-keras: keras-tests ## Run all of Keras' own tests that train or save, under our deployments (a quarter of an hour).
	@echo "Running Keras' own tests: plain, with Keras' functions replaced, after undo, on one device, two replicas, synchronous workers"
	@.venv/bin/python -m tests.keras

test-libraries: .venvs/libraries/installed ## Run the tests with libraries that people use, in an environment with them.
	@echo "Running the tests with other libraries ($(WHICH))"
	@.venvs/libraries/bin/python -m pytest -m "$(WHICH)" -rs tests/libraries

# Where pip is told of wheels on this disk, uv is: the registry has no CPU build of PyTorch.
test-schedulers: .venvs/libraries/installed ## Run jobs under Slurm, Open MPI, torchrun and Ray, of those that are installed.
	@UV_FIND_LINKS=$(PIP_FIND_LINKS) $(MAKE) --no-print-directory .venvs/torchrun/installed || \
	  echo "No torchrun: there is no CPU build of PyTorch here. UV_TORCH_BACKEND=cpu downloads one."
	@echo "Running jobs under other launchers"
	@.venvs/libraries/bin/python -m pytest -rs tests/schedulers

# TF-Slim's layers are those of Keras 2, which TensorFlow finds where the variable is set.
test-slim: .venvs/slim/installed ## Compare nets, preprocessing and training with TF-Slim itself, in an environment with it.
	@echo "Comparing with TF-Slim ($(WHICH))"
	@TF_USE_LEGACY_KERAS=1 .venvs/slim/bin/python -m pytest -m "$(WHICH)" -rs tests/slim

test-drawn: $(INSTALLED) ## Compare programs drawn at random with plain Keras (EXAMPLES=2000).
	@echo "Drawing $(or $(EXAMPLES),200) programs"
	@EXAMPLES=$(or $(EXAMPLES),200) .venv/bin/python -m pytest tests/parity/test_drawn_programs.py \
	  --timeout 0 --override-ini faulthandler_timeout=0

test-kills: $(INSTALLED) ## Kill tasks at random moments, and compare with one that is not killed (KILLS=20).
	@echo "Killing tasks in $(or $(KILLS),20) trainings"
	@KILLS=$(or $(KILLS),20) .venv/bin/python -m pytest \
	  tests/cluster/test_random_kills.py tests/cluster/test_lost_workers.py --override-ini faulthandler_timeout=0

test-versions: $(INSTALLED) ## Run the promises on older Keras and TensorFlow (PAIRS=..., NEXT=1: the next one).
	@.venv/bin/python -m tests.versions $(if $(NEXT),--next,$(PAIRS))

# Not a file of make's: the folder is named after the version in the lock.
keras-tests: $(INSTALLED)
	@.venv/bin/python -m tests.keras.source

notebook: $(INSTALLED) .venvs/notebook/installed ## Open the notebooks in a browser.
	@JUPYTER_PATH=$(CURDIR)/.venvs/notebook/share/jupyter \
	  .venv/bin/python -m ipykernel install --prefix .venvs/notebook > /dev/null
	@.venvs/notebook/bin/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) notebooks

docs: .venvs/docs/installed ## Build the documentation into site/; a warning is an error.
	@NO_MKDOCS_2_WARNING=1 .venvs/docs/bin/mkdocs build --quiet --strict --clean
	@echo "Written: site/index.html"

dist: $(INSTALLED) ## Build what is released into dist/, and try it in empty environments.
	@rm -rf dist
	@for folder in . models; do \
	  .venv/bin/python -m build --no-isolation --outdir dist $$folder || exit 1; \
	done
	@.venv/bin/python -m tests.distribution

release: $(INSTALLED) ## Check, build and try the version to release; nothing is tagged or published.
	@.venv/bin/python -m tests.release
	@$(MAKE) --no-print-directory test-all
	@$(MAKE) --no-print-directory docs
	@$(MAKE) --no-print-directory dist
	@echo "Checked and built. Next: tag the commit, publish dist/ (docs/releasing.md)."

lint: $(INSTALLED) ## Check the style and the types.
	@echo "Checking the style (ruff) and the types (ty)"
	@.venv/bin/ruff check --quiet
	@.venv/bin/ruff format --check --quiet
	@.venv/bin/ty check --quiet --python .venv

lock: $(MADE) ## Write requirements.lock and locks/ anew (UPGRADE=1 also takes newer versions).
	@echo "Resolving pyproject.toml into requirements.lock and locks/"
	@$(COMPILE) pyproject.toml --group app --group build --group lint --group test \
	  --output-file requirements.lock
	@for lock in locks/keras-*-tensorflow-*.lock; do \
	  pair=$$(basename $$lock .lock | sed -E 's/keras-(.*)-tensorflow-(.*)/keras==\1.* tensorflow==\2.*/'); \
	  $(COMPILE) pyproject.toml --group build --group promises \
	    --constraints <(printf '%s\n' $$pair) --no-annotate --output-file $$lock || exit 1; \
	done
	@for group in libraries slim; do \
	  $(COMPILE) pyproject.toml --group $$group --no-annotate --output-file locks/$$group.lock || exit 1; \
	done
	@for group in deploy docs notebook profile; do \
	  $(COMPILE) --group $$group --no-annotate --output-file locks/$$group.lock || exit 1; \
	done
	@UV_FIND_LINKS=$(PIP_FIND_LINKS) $(COMPILE) --group torchrun --no-annotate \
	  --output-file locks/torchrun.lock || echo "locks/torchrun.lock stays as it is."

clean: ## Remove .venv, .venvs, Keras' tests and the caches; runs/ and data/ stay.
	@echo "Removing .venv, .venvs, Keras' tests and the caches"
	@rm -rf .venv .venvs .keras-tests .pytest_cache .ruff_cache build dist site
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Rerun when the lock or pyproject.toml changes. The last step is the stamp: an interrupted
# installation starts again. Compiled at once: where PYTHONDONTWRITEBYTECODE is set, as in many
# containers, every process would compile TensorFlow anew, which takes three times its import.
$(INSTALLED): $(MADE) requirements.lock pyproject.toml
	@echo "Installing the locked packages into .venv (the first time downloads about 1 GB)"
	@$(UV) pip sync --quiet --python .venv --compile-bytecode \
	  --require-hashes requirements.lock
	@$(UV) pip install --quiet --python .venv --no-deps --no-build-isolation --editable .
	@touch $@

.venvs/%/installed: $(MADE) locks/%.lock
	@echo "Installing locks/$*.lock into .venvs/$*"
	@$(UV) venv --quiet --clear --python .venv/bin/python .venvs/$*
	@$(UV) pip sync --quiet --python .venvs/$* --compile-bytecode --require-hashes locks/$*.lock
	@touch $@

$(MADE):
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { \
	  echo "kerasdist needs Python 3.11, 3.12 or 3.13. Received: PYTHON=$(PYTHON)," \
	    "which is $$($(PYTHON) --version 2>&1 | tail -n 1)." \
	    "Name another one: PYTHON=python3.11 make <target>" >&2; exit 1; }
	@echo "Making .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear .venv
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@touch $@
