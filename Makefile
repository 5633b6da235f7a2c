# The two commands are `make up` and `make test`; `make help` lists the rest.

# The first Python here that the pinned packages exist for; override with `make PYTHON=… up`.
PYTHON ?= $(shell for p in python3.11 python3.12 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
# The one on the path, or one that pip brings into the new environment: it takes a sixth of pip's time.
UV := $(shell command -v uv)
PINNED := -c requirements/constraints.txt
# uv reads no configuration of pip's: where it finds no package, pip, which may have another index, is asked.
install = uv=$(or $(UV),$(BIN)/uv); { [ -x $$uv ] && $$uv pip install -q --python $(BIN)/python $(PINNED) $(1); } || \
	$(PIP) install -q --no-compile $(PINNED) $(1)
# Not `python -m pytest`, which puts this folder on sys.path, where triton/ passes for torch's compiler.
PYTEST := $(BIN)/pytest

TIERS := tests/unit tests/served tests/web
# Without food_first, which is written to be read by students, with no types.
MODEL_FOLDERS := $(filter-out %/food_first/1/,$(dir $(wildcard triton/models/*/1/model.py triton/backends/*/model.py)))
# Workers with servers of their own, which take 2.5 GB each; tests/conftest.py has the longest files first, and those that
# share a Triton on two workers. Half of the time they wait for servers: four keep two cores busy.
WORKERS := --dist loadgroup --no-loadscope-reorder --numprocesses \
	$(shell awk '/MemTotal/ { n = int($$2 / 2500000); print (n < 2 ? 2 : n > 4 ? 4 : n) }' /proc/meminfo)
# pytest's status 5 says that no test ran, which is a failure unless ARGS chose them by words (-k).
# A thread each: sums with two threads wait for those of other workers on two cores. Measured for a slow test beside
# other work: 8.6 s of CPU in place of 25.9.
run_tests = OMP_NUM_THREADS=1 $(PYTEST) $(1) $(ARGS) || { status=$$?; [ $$status -eq 5 ] && [ -n "$(filter -k%,$(ARGS))" ]; }

# What is compiled is kept, whatever the environment says: tests start our programs hundreds of times.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup train-setup setup-dev setup-lab up lab smoke test test-unit test-slow test-nightly test-containers test-gpu check audit docs dist format bench bench-peers bench-generation nightly clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: setup ## Run the product, Triton and the web app, until Ctrl-C (options: make up ARGS="--port 8080")
	@exec $(BIN)/gourmet up $(ARGS)

lab: setup-lab ## Open the notebook beside Triton, which is started unless one runs, until Ctrl-C (ARGS="--no-browser")
	@exec $(BIN)/gourmet lab $(ARGS)

smoke: setup-dev ## Run the few tests that show in a minute whether the product works at all
	@$(PYTEST) $(TIERS) --smoke $(ARGS)

ifeq ($(ARGS),--smoke)
test: smoke
else
test: setup-dev ## Run all tests but the slow ones (options: make test ARGS="-k upload"; ARGS=--smoke is make smoke)
	@$(call run_tests,$(TIERS) $(WORKERS) -m "not slow and not nightly")
endif

test-slow: setup-dev setup-lab ## Run the slow ones, which CI runs too: trainings, tuning, faults, a wheel in an empty environment
	@$(call run_tests,$(TIERS) $(WORKERS) -m slow)

test-nightly: setup-dev ## Run the slowest ones: whole trainings and notebooks, thousands of photos, overload and a soak
	@$(call run_tests,$(TIERS) $(WORKERS) -m nightly)

test-unit: setup-dev ## Run the tests that start no server
	@$(call run_tests,tests/unit --dist loadfile --numprocesses 2 -m "not slow and not nightly")

test-containers: setup-dev ## Build the images, bring the CPU stack up and classify a photo through it
	$(PYTEST) tests/containers --timeout 2400 $(ARGS)

test-gpu: train-setup ## Run what wants a GPU, in some five minutes, and print a report (ARGS="--into FILE"; docs/gpu.md)
	$(BIN)/python scripts/test_gpu.py $(ARGS)

check: setup-dev ## Lint, check the format, the types and which package imports which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	@# Every model and backend is a program of its own, and all call themselves "model".
	@$(PYTEST) -q tests/unit/test_kubernetes.py -k schemas --durations 0
	@for folder in $(MODEL_FOLDERS); do echo "mypy $$folder"; MYPYPATH=$$folder $(BIN)/mypy $$folder || exit 1; done

audit: setup-dev ## Look the pinned packages up among the known vulnerabilities
	$(BIN)/python -P scripts/audit.py

docs: setup ## Write the documentation as a site with search to site/html
	@$(call install,-r requirements/docs.txt)
	@rm -rf site && mkdir -p site/source
	@git ls-files -z '*.md' '*.csv' '*.ipynb' 'docs/*.svg' 'docs/*.png' NOTICE proxy/nginx.conf deploy/haproxy 'triton/models/*/model.py' | \
		xargs -0 cp --parents -t site/source
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/html/index.html is the first page."

VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
UV_OR_PIPS = $(or $(UV),$(BIN)/uv)
dist: setup ## Build what a release publishes into dist: the wheel, the source, an SBOM and the notes (a minute)
	@$(call install,-r requirements/dist.txt)
	@rm -rf dist
	@$(UV_OR_PIPS) build -q --out-dir dist
	@$(UV_OR_PIPS) venv -q --python $(BIN)/python dist/environment
	@$(UV_OR_PIPS) pip install -q --python dist/environment $(PINNED) dist/*.whl
	@$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o dist/wheel.cdx.json dist/environment
	@rm -rf dist/environment
	@awk '/^## / { on = $$2 == "$(VERSION)" } on' CHANGELOG.md >dist/notes.md
	@test -s dist/notes.md || { echo "CHANGELOG.md has no part for $(VERSION)."; exit 1; }
	@ls -l dist

format: setup-dev ## Bring the code into the house's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: train-setup ## Measure what Triton adds to ONNX Runtime (5 minutes)
	$(BIN)/python -P benchmarks/foundation.py $(ARGS)

bench-peers: train-setup .venv-peers/.ready ## Measure ours beside FastAPI, LitServe and BentoML (20 minutes)
	$(BIN)/python -P benchmarks/peers.py $(ARGS)

bench-generation: setup-dev .venv-generation/.ready ## Measure the figures of docs/loop.md (10 minutes)
	$(BIN)/python -P benchmarks/generation.py $(ARGS)

# Other servers, each kind in an environment of its own.
.venv-%/.ready: benchmarks/servers/%.txt | $(BIN)/python
	@rm -rf $(@D)
	@$(BIN)/python -m venv --without-pip $(@D)
	$(BIN)/python -m pip --python $(@D)/bin/python install --quiet --disable-pip-version-check --requirement $<
	@touch $@

nightly: test-nightly bench bench-peers bench-generation ## Run the slowest tests, and compare with other servers and loops (an hour)

setup: $(VENV)/.ready ## Make the virtual environment that `make up` needs
train-setup: $(VENV)/.ready-train ## Add what training, evaluating, exporting and benchmarks need
setup-dev: $(VENV)/.ready-dev ## Make the virtual environment that `make test` needs
setup-lab: $(VENV)/.ready-lab ## Make the virtual environment that `make lab` needs

$(BIN)/python:
ifneq ($(UV),)
	@echo "Setting up $(VENV) with uv: a quarter of a minute, once."
	@$(UV) venv -q --seed --python $(or $(PYTHON),3.12) $(VENV)
else ifneq ($(PYTHON),)
	@echo "Setting up $(VENV) with $(PYTHON): a quarter of a minute, once."
	@$(PYTHON) -c '' || { echo "PYTHON=$(PYTHON) does not start: name another."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) has no venv module (Debian: apt install $(notdir $(PYTHON))-venv)."; exit 1; }
	@$(PIP) install -q --no-compile $(PINNED) uv || echo "pip brings no uv here, and installs the rest itself: a minute."
else
	@echo "No Python 3.11 or 3.12 here: \`pip install uv && uv python install 3.12\` brings one."
	@exit 1
endif

# The project's dependencies and extras are the files of requirements/: see pyproject.toml.
$(VENV)/.ready: requirements/web.txt requirements/models.txt requirements/serve.txt requirements/constraints.txt pyproject.toml | $(BIN)/python
	@$(call install,--editable .)
	@# Compile what serving imports, once and not in each process of the first start.
	@ORT_DISABLE_TELEMETRY=1 $(BIN)/python -P -c 'import onnxruntime, PIL.Image, tritonclient.grpc, gunicorn.app.wsgiapp, app, gourmet.commands.up; app.create_app()'
	@# Every Python of the environment then finds torch whole when it is started here: see gourmet/import_guard.py
	@$(BIN)/python -P -c 'import pathlib, sysconfig; pathlib.Path(sysconfig.get_path("purelib"), "gourmetgram.pth").write_text("import gourmet\n")'
	@touch $@

# Without an NVIDIA driver torch comes from PyTorch's index of CPU builds: PyPI's brings 2.7 GB of CUDA. pip installs it,
# before the rest: uv would not see the index that pip is configured for.
TORCH = $(PIP) install -q --no-compile $(1) $$(grep -E '^torch(vision)?==' requirements/train.txt)
$(VENV)/.ready-train: $(VENV)/.ready requirements/train.txt
	@{ ! command -v nvidia-smi >/dev/null && \
		$(call TORCH,--no-deps --timeout 5 --retries 0 --index-url https://download.pytorch.org/whl/cpu); } || \
		{ echo "torch comes from pip's own index: on PyPI with 2.7 GB of CUDA."; $(call TORCH,$(PINNED)); }
	@$(call install,-r requirements/train.txt)
	@touch $@

DEV := $(patsubst %,requirements/%.txt,dev mcp ray redis tracing)
$(VENV)/.ready-dev: $(VENV)/.ready-train $(DEV)
	@$(call install,$(DEV:%=-r %))
	@touch $@

$(VENV)/.ready-lab: $(VENV)/.ready requirements/lab.txt
	@$(call install,-r requirements/lab.txt)
	$(BIN)/python -m bash_kernel.install --sys-prefix
	@$(BIN)/gourmet perf-analyzer -- --help >/dev/null || echo "perf_analyzer is missing: its cells need it; the rest of the lab does not."
	@touch $@

clean: ## Remove the virtual environment, caches and local runs
	rm -rf $(VENV) *.egg-info runs .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
