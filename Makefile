PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadgroup
INSTALLED := $(VENV)/.installed
TOOL := PYTHONPATH=tests:tests/support:tests/backends $(BIN)/python tools

.PHONY: help check test test-unit conformance affected test-evidence lint bench clean \
  api artefacts docs field-bugs files fingerprints frameworks keras-hub matrix meshes mutation performance published scaling session sharding-faults tables tutorials wild

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

test: $(INSTALLED)  ## unit and product tests, eight minutes on two quiet cores; LIMIT=900 fails above so many CPU seconds
	$(PYTEST) --kind unit --kind product --cpu-seconds 20 $(if $(LIMIT),--cpu-limit $(LIMIT))

test-unit: $(INSTALLED)  ## the tests that start no process, three minutes
	$(PYTEST) --kind unit

conformance: $(INSTALLED)  ## all tests but evidence: every case, mutant, family and framework: hours; build/conformance.json has the counts
	$(PYTEST) --kind unit --kind product --kind conformance --counts build/conformance.json

affected: $(INSTALLED)  ## the conformance tests that the last day's commits can affect, the nearest first, for ten minutes
	$(PYTEST) --kind conformance --affected --no-loadscope-reorder --minutes 10 --counts build/affected.json

test-evidence: $(INSTALLED)  ## unseen bugs, 200 random configurations, 300 random models and pretrained weights: hours
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[real]'
	$(PYTEST) --kind evidence --soak 200 --counts build/evidence.json

lint: $(INSTALLED)  ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: api files performance scaling tables matrix meshes artefacts session tutorials frameworks keras-hub field-bugs sharding-faults published mutation wild  ## every document that is made: hours; the targets below are its parts

api: $(INSTALLED)  ## docs/api.md
	$(TOOL)/api.py

files: $(INSTALLED)  ## docs/files.md
	$(TOOL)/files.py

performance: $(INSTALLED)  ## docs/performance.md and the table in README.md, from docs/performance/
	$(TOOL)/performance.py

scaling: $(INSTALLED)  ## plans on paper beside what torch's trace and XLA's programs show: docs/scaling.md, ten minutes
	$(TOOL)/scaling.py --measure

tables: $(INSTALLED)  ## the tables of the families in docs/checkpoints.md
	$(TOOL)/checkpoint_tables.py

matrix: $(INSTALLED)  ## the matrix in docs/check.md and README.md, and its picture: three minutes, with chromium
	$(TOOL)/matrix.py

meshes: $(INSTALLED)  ## our ports on eleven meshes: docs/meshes.md, half an hour
	$(TOOL)/meshes.py docs/meshes.md

artefacts: $(INSTALLED)  ## our exports in every format, checked: the table in docs/artefacts.md, a quarter of an hour
	$(TOOL)/artefacts.py

session: $(INSTALLED)  ## the console sessions of docs/porting.md and docs/like.md: six minutes
	$(TOOL)/session.py

tutorials: $(INSTALLED)  ## what the commands of the guide's tutorials print
	$(TOOL)/tutorials.py

frameworks: $(INSTALLED)  ## what users do in each framework, run and compared: docs/frameworks.md
	$(TOOL)/frameworks.py docs/frameworks.md

keras-hub: $(INSTALLED)  ## KerasHub's decoders beside the reference, on every backend of Keras: docs/keras-hub.md, two minutes
	$(TOOL)/keras_hub_page.py docs/keras-hub.md

field-bugs: $(INSTALLED)  ## the field's bugs, planted in transformers and judged: docs/field-bugs.md, half an hour
	$(TOOL)/field_bugs.py docs/field-bugs.md

sharding-faults: $(INSTALLED)  ## mistakes of sharded ports, planted and judged: docs/sharding-faults.md, a quarter of an hour
	$(TOOL)/sharding_faults.py docs/sharding-faults.md

published: $(INSTALLED)  ## models as libraries publish them, compared: the table in docs/compare.md and the rename tables, five minutes
	$(TOOL)/published.py docs/compare.md

mutation: $(INSTALLED)  ## every defect injected and named: docs/mutation.md, hours
	$(TOOL)/mutation.py docs/mutation.md $(VENV)/mutation

wild: $(INSTALLED)  ## mistakes written without sight of the catalogue, diagnosed: docs/wild.md, hours
	$(TOOL)/wild.py docs/wild.md

fingerprints: $(INSTALLED)  ## freezes new cases
	$(TOOL)/fingerprints.py

bench: $(INSTALLED)  ## ours beside every peer, interleaved: docs/performance/; then `make performance`
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/rosettaformer bench --data docs/performance

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
