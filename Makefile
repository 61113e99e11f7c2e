# `make demo` and `make test` set everything up on a fresh machine. PYTHON may name another interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
FLOWER := .venv-flower
DOCS := .venv-docs
HF := .venv-hf
# tests run side by side on all cores; threads of their own would only wait for each other
test test-deploy test-hf check: export OMP_NUM_THREADS = 1
QUICK := tests/test_structure.py tests/core tests/round tests/data tests/tasks tests/report tests/oracles/test_steps.py \
	tests/methods/test_flea.py tests/methods/test_combinations.py

.PHONY: demo test test-deploy test-hf lint style types check crash fuzz epsilon campaign matrix mutants bench docs notebooks format clean

demo: $(READY)
	@rm -rf runs/demo
	$(BIN)/unskew compare fedavg fedprox rebafl rebafl+feddyn --config examples/demo.yaml --seeds 5 --name demo

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal

# Flower pins other versions of what the rest uses, so tests that need it have an environment of their own; all others of
# tests/federation run with `make test`. Those with real processes mostly wait; they begin first, the longest before the others.
REAL := $(addprefix tests/federation/test_, $(addsuffix .py, resume_real real first_round))
test-deploy: $(FLOWER)/.ready
	$(FLOWER)/bin/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder -m flower $(REAL) tests/federation tests/campaign

# Models of Hugging Face need transformers and peft, which take long to import, so their tests have an environment of their own.
# Flower is in it, too: three sites, as real processes, train adapters of such a model.
test-hf: $(HF)/.ready
	$(HF)/bin/python -m pytest -q tests/models/test_hf.py tests/federation/test_adapters.py

lint: style types

style: $(READY)
	$(BIN)/ruff format --check src tests tools benchmarks examples
	$(BIN)/ruff check src tests tools benchmarks examples

types: $(READY)
	$(BIN)/pyright --level error

check: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" $(QUICK)

# kills, damaged files and wrong arguments in numbers; small parts of both run with `make test`
crash: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.crash.harness

fuzz: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.harness

# epsilon of 200 random settings between figures that bound it from below and from above; a dozen are in `make test`
epsilon: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.privacy.random_settings $(OPTIONS)

# kills, cuts, full disks, wrong clocks and attacks on a federation of real processes; half an hour and more, so a nightly
# job. A small part runs with `make test-deploy`. OPTIONS="--only kills --kills 12 --seed 1 --json FILE"
campaign: $(FLOWER)/.ready
	OMP_NUM_THREADS=1 $(FLOWER)/bin/python -m tests.campaign.harness $(OPTIONS)

# every check of every method and every pair of them, or with PART=3/30 a thirtieth of the pairs, for a nightly job
PART = all
matrix: $(READY)
	UNSKEW_MATRIX=$(PART) $(BIN)/python -m pytest -n 2 tests/methods tests/oracles tests/tasks/test_sample_weights.py tests/test_snippets.py tests/test_notebooks.py tests/runs/test_measure.py tests/cli/test_hostile.py tests/round/test_masks.py tests/round/test_gpu_path.py tests/round/test_several_inputs.py tests/round/test_several_scaled.py tests/federation/test_bits.py tests/experiments/test_plan.py

# draws N places of the source, changes one at a time, and asks whether a test that executes it fails. The first call runs the
# suite with coverage, to learn which tests execute which lines; remove .mutants after the tests or the source have changed.
SEED = $(shell date +%Y%m%d)
N = 200
mutants: .mutants/plain/coverage .mutants/flower/coverage
	$(BIN)/python tools/mutants.py draw --seed $(SEED) -n $(N) .mutants/plain .mutants/flower

.mutants/plain/coverage: $(READY)
	$(BIN)/python tools/mutants.py cover .mutants/plain -n 2 --dist worksteal

.mutants/flower/coverage: $(FLOWER)/.ready
	$(FLOWER)/bin/python tools/mutants.py cover .mutants/flower -n 4 --dist loadfile -m flower tests/federation

# the documentation site, in site/; a link or an anchor that leads nowhere, a page that is not in the navigation, or one that
# would fetch something from another host fails it. It needs no network once .venv-docs is there, and takes seconds; tests/test_site.py
# asks the same of the pages' sources in `make test`.
docs: $(READY) $(DOCS)/.ready
	$(BIN)/python tools/docs.py --site
	NO_MKDOCS_2_WARNING=1 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=src:. $(DOCS)/bin/mkdocs build --strict
	@echo "open site/index.html"

# executes docs/notebooks, for `make docs` to show with what they print; minutes, offline
notebooks: $(READY) $(DOCS)/.ready
	$(DOCS)/bin/python tools/notebooks.py $(BIN)/python

bench: $(READY)
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/own_models.py --models digits mlp table lenet --repeats 30

format: $(READY)
	$(BIN)/ruff format src tests tools benchmarks examples
	$(BIN)/ruff check --fix src tests tools benchmarks examples

# What is installed is compiled when it is first imported, which is a small part of it; without files of bytecode, each of
# the tests' hundreds of processes would compile it again.
PIP := pip install --quiet --disable-pip-version-check --no-compile
unexport PYTHONDONTWRITEBYTECODE

# torch first and by itself: a range would pull the largest build there is
$(READY): requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/$(PIP) "$$(grep '^torch==' requirements.lock)"
	$(BIN)/$(PIP) -r requirements.lock
	$(BIN)/$(PIP) --no-deps -e .
	touch $(READY)

$(FLOWER)/.ready: requirements-flower.lock pyproject.toml
	test -x $(FLOWER)/bin/python || $(PYTHON) -m venv $(FLOWER)
	$(FLOWER)/bin/$(PIP) "$$(grep '^torch==' requirements-flower.lock)"
	$(FLOWER)/bin/$(PIP) -r requirements-flower.lock
	$(FLOWER)/bin/$(PIP) --no-deps -e .
	touch $(FLOWER)/.ready

$(HF)/.ready: requirements-flower.lock pyproject.toml
	test -x $(HF)/bin/python || $(PYTHON) -m venv $(HF)
	$(HF)/bin/$(PIP) "$$(grep '^torch==' requirements-flower.lock)"
	$(HF)/bin/$(PIP) -r requirements-flower.lock
	$(HF)/bin/$(PIP) -r requirements-flower.lock -e ".[hf]"
	touch $(HF)/.ready

$(DOCS)/.ready: requirements-docs.lock
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install --quiet --disable-pip-version-check -r requirements-docs.lock
	touch $(DOCS)/.ready

clean:
	rm -rf $(VENV) $(FLOWER) $(DOCS) $(HF) site .pytest_cache .ruff_cache .hypothesis
