PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadgroup
INSTALLED := $(VENV)/.installed
TOOL := PYTHONPATH=.:tests:tests/support:tests/backends $(BIN)/python tools

.PHONY: help check test test-unit conformance affected test-evidence lint bench clean docs evidence fingerprints

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

test: $(INSTALLED)  ## unit and product tests, ten minutes on two quiet cores; LIMIT=900 fails above so many CPU seconds
	$(PYTEST) --kind unit --kind product --cpu-seconds 20 $(if $(LIMIT),--cpu-limit $(LIMIT))

test-unit: $(INSTALLED)  ## the tests that start no process, four minutes
	$(PYTEST) --kind unit

conformance: $(INSTALLED)  ## all tests but evidence: every case, mutant, family and framework: hours; build/conformance.json has the counts
	$(PYTEST) --kind unit --kind product --kind conformance --counts build/conformance.json

affected: $(INSTALLED)  ## the conformance tests that the last day's commits can affect, the nearest first, for five minutes
	$(PYTEST) --kind conformance --affected --no-loadscope-reorder --minutes 5 --counts build/affected.json

test-evidence: $(INSTALLED)  ## unseen bugs, 200 random configurations, 300 random models and pretrained weights: hours
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[real]'
	$(PYTEST) --kind evidence --soak 200 --counts build/evidence.json

lint: $(INSTALLED)  ## ruff, mypy, and the prose
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python tools/prose.py

bench: $(INSTALLED)  ## time and memory beside every peer: hours; needs the extra bench; OPTIONS="--workload W5" are its options
	$(BIN)/python -m bench $(OPTIONS)

docs: $(INSTALLED)  ## docs/api.md and the pictures in docs/architecture.md
	$(TOOL)/architecture.py
	$(TOOL)/api.py

evidence: $(INSTALLED)  ## results that take hours, in steps that resume: .evidence/; STEP=wild is one of them
	$(TOOL)/evidence.py $(STEP)

fingerprints: $(INSTALLED)  ## freezes new cases
	$(TOOL)/fingerprints.py

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
