# `make demo` and `make test` set everything up on a fresh machine. PYTHON may name another interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
FLOWER := .venv-flower

.PHONY: demo test test-deploy check bench format clean

demo: $(READY)
	@rm -rf runs/demo
	$(BIN)/unskew compare fedavg rebafl flea --config examples/demo.yaml --seeds 2 --name demo

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile

# Flower pins other versions of what the rest uses, so its tests have a place of their own: real processes on loopback
test-deploy: $(FLOWER)/.ready
	$(FLOWER)/bin/python -m pytest tests/deploy

check: $(READY)
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/pyright --level error
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow" tests/core tests/methods/test_flea.py tests/methods/test_others.py tests/methods/test_rebafl.py tests/engine tests/deploy tests/data tests/tasks tests/report

bench: $(READY)
	$(BIN)/python benchmarks/scale.py
	cd benchmarks && ../$(BIN)/python compare.py

format: $(READY)
	$(BIN)/ruff format src tests benchmarks examples
	$(BIN)/ruff check --fix src tests benchmarks examples

# torch first and by itself: a range would pull the largest build there is
$(READY): requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check "$$(grep '^torch==' requirements.lock)"
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $(READY)

$(FLOWER)/.ready: requirements-flower.lock pyproject.toml
	test -x $(FLOWER)/bin/python || $(PYTHON) -m venv $(FLOWER)
	$(FLOWER)/bin/pip install --quiet --disable-pip-version-check "$$(grep '^torch==' requirements-flower.lock)"
	$(FLOWER)/bin/pip install --quiet --disable-pip-version-check -r requirements-flower.lock
	$(FLOWER)/bin/pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $(FLOWER)/.ready

clean:
	rm -rf $(VENV) $(FLOWER) .pytest_cache .ruff_cache .hypothesis
