# Two commands matter to a user: `make demo` and `make test`. Both set up what they need.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
EXTRAS ?= dev,docs,federated,llm,tables
CONSTRAINTS ?= constraints.txt

.PHONY: demo test test-fast check bench docs storm random-models supported-models sklearn-older clean
.DELETE_ON_ERROR:

# torch first and pinned: without the pin pip takes gigabytes of CUDA.
$(VENV)/.ready-%: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint $(CONSTRAINTS) torch
	$(BIN)/pip install --quiet --constraint $(CONSTRAINTS) --editable ".[$(subst +,$(comma),$*)]"
	@touch $@
comma := ,
plus  := +
DEV   := $(VENV)/.ready-$(subst $(comma),$(plus),$(EXTRAS))

demo: $(VENV)/.ready-federated
	$(BIN)/sordina demo

# One thread per process: two processes with two threads each spend their time waiting for one another.
test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 src tests

# About two minutes on two cores: the laws of the house, every contract, and one pass through every room.
FAST := tests/architecture tests/contracts tests/clipping tests/mechanisms/test_contract.py tests/random tests/run_folder tests/tables \
        tests/models tests/fairness tests/words tests/accounting/test_contract.py tests/training/test_step.py \
        tests/training/test_trainer.py tests/gradients/test_against_autograd.py tests/federated/test_run.py \
        tests/tuning/test_space.py tests/auditing/test_bounds.py tests/reports/test_page.py tests/cli/test_output.py
test-fast: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow" $(FAST)

check: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/.ready-dev+federated+llm+tables+bench
	$(BIN)/python -m benchmarks

# The estimators with an older scikit-learn too: the same environment, with that one version exchanged.
SKLEARN_OLDER ?= 1.5.2
sklearn-older: $(DEV)
	$(PYTHON) -m venv $(VENV)-sklearn
	$(VENV)-sklearn/bin/pip install --quiet --no-deps scikit-learn==$(SKLEARN_OLDER)
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_paths()['purelib'])" \
		> $$(echo $(VENV)-sklearn/lib/python*/site-packages)/shared.pth
	PYTHONPATH=src OMP_NUM_THREADS=1 $(VENV)-sklearn/bin/python -m pytest tests/estimators

# Kills, full disks, torn files and races on training and federations: the long form of tests/faults.
storm: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults.storm
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults.fuzz_arguments
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults.storm_of_federations
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults.storm_of_searches

# 10 000 random models against brute force, from a fresh seed that it prints; goes on where it stopped, and starts again
# when the engine has changed.
random-models: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.gradients.random_models
	OMP_NUM_THREADS=1 SORDINA_LONG=1 $(BIN)/python -m pytest -q tests/gradients/test_upper_bounds.py

# Writes docs/reference/supported-models.md: every model there against brute force.
supported-models: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.gradients.supported_models

docs: $(VENV)/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "Documentation: site/index.html (for its search: python3 -m http.server --directory site)"

clean:
	rm -rf $(VENV) build site src/*.egg-info
