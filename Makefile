# Everything happens in .venv, made on demand; it is renewed when pyproject.toml or
# constraints.txt changes. Another interpreter: make setup PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
WORKERS ?= 2
ARGS ?=
RUN ?= $(shell ls -td runs/*/ 2>/dev/null | head -n 1)

# A folder of this name on the path shows type checkers what the installed package looks like.
LINK := .importroot/levelfield

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint type smoke report clean

help: ## show these targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

setup: $(VENV)/.dev ## install levelfield and the tools of its developers into .venv

demo: $(VENV)/.run ## run the smallest comparison and print where its page is
	$(BIN)/levelfield run quick
	@echo "page: $$(ls -t runs/*/report.html | head -n 1)"

test: $(VENV)/.dev ## run the tests (more: make test ARGS="-m slow")
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

lint: $(VENV)/.dev $(LINK) ## check style and imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# By name, not by folder: a file given as bench/x.py is a module `bench.x` to mypy, and its classes
# are not those of `levelfield.bench.x`.
PACKAGES := bench optimizers protocols reports
type: $(VENV)/.dev $(LINK) ## check types
	$(BIN)/mypy -m levelfield -m levelfield.cli $(PACKAGES:%=-p levelfield.%)

smoke: $(VENV)/.run ## try the whole way, from data to page, in a minute
	$(BIN)/levelfield run smoke

report: $(VENV)/.run ## write the page of the newest run again (another: RUN=runs/NAME)
	@test -n "$(RUN)" || { echo "no run yet: make smoke makes one" >&2; exit 1; }
	$(BIN)/levelfield report $(RUN)

clean: ## remove .venv, caches and build outputs; runs stay
	rm -rf $(VENV) .importroot .mypy_cache .pytest_cache .ruff_cache build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing levelfield into $(VENV): a few minutes the first time"
	@$(INSTALL) -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing levelfield and its tools into $(VENV): a few minutes the first time"
	@$(INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.run

$(BIN)/pip:
	@command -v $(PYTHON) >/dev/null || \
		{ echo "no $(PYTHON): Python >= 3.11 is needed; name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$$($(PYTHON) --version) is too old: Python >= 3.11 is needed; name one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) has no venv: install it (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(LINK):
	@mkdir -p $(@D)
	@ln -sfn .. $@
