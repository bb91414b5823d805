# make demo   train three organisations on synthetic data and show what joining gains, in a minute or two
# make test   run the whole test suite
# make coverage  run the test suite and show the coverage of each module, lowest first
# make fuzz   send a million hostile messages to the members of a federation (about ten minutes)
# make soak   run thirty nights of a federation with kills, a late party, a full disk and more (five minutes)
# make lint   check style, types, the order of the rooms, spelling, prose and the size of the house
# make docs   build the documentation site in site/
# make setup  only set up the environment (.venv) with the product; tests also install packages/
PYTHON ?= python3
BIN := .venv/bin
PACKAGES := packages/verfedgnn-research packages/verfedgnn-flare
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: setup demo test coverage fuzz soak lint docs clean

setup: .venv/installed

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "verfedgnn needs Python 3.11 or newer; name one with: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing verfedgnn into .venv (once; about a minute)"
	$(PIP_INSTALL) -e .
	@touch $@

.venv/installed-dev: .venv/installed $(PACKAGES:=/pyproject.toml)
	@echo "installing research, FLARE and the test tools into .venv (once)"
	$(PIP_INSTALL) -e '.[dev,federation,psi]' $(addprefix -e ,$(PACKAGES))
	@touch $@

demo: .venv/installed
	@$(BIN)/verfedgnn train --data synthetic --preset best --by category --out runs/demo --overwrite

test: .venv/installed-dev
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rs --numprocesses 2 --dist loadfile --no-loadscope-reorder

coverage: .venv/installed-dev
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --cov --cov-report term

fuzz: .venv/installed-dev
	@OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python tests/fuzzer.py --messages 1000000

soak: .venv/installed-dev
	@OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python benchmarks/soak.py --picture results/soak.svg

lint: .venv/installed-dev
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports --no-logo 2>/dev/null && $(BIN)/mypy
	@$(BIN)/codespell *.md docs results/*.md src packages tools && $(BIN)/python tools/check_prose.py && $(BIN)/python tools/house.py

.venv/installed-docs: .venv/installed $(PACKAGES:=/pyproject.toml)
	@echo "installing the documentation tools into .venv (once)"
	$(PIP_INSTALL) -e '.[docs]'
	$(PIP_INSTALL) --no-deps $(addprefix -e ,$(PACKAGES))  # the commands are described, not run
	@touch $@

docs: .venv/installed-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "built site/; view it with: $(BIN)/python -m http.server --directory site"

clean:
	rm -rf .venv runs site .pytest_cache .mypy_cache .ruff_cache
