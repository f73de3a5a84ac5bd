PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Python may keep bytecode, or every process compiles the tests and the package again.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: demo docs test-docs test test-all test-ray test-oldest test-newest test-gpu lint format bench bench-gpu clean

demo: $(VENV)/.ready  ## all six methods on clean and damaged digits: a page and three sentences
	$(BIN)/rbue demo

docs: $(VENV)/.ready  ## the site, into build/site; the tutorials run, warnings are errors, links lead somewhere
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m sphinx -q -E -W --keep-going -d build/doctrees docs build/site
	$(PYTEST) -q -k links tests/test_site.py

test-docs: docs  ## every page of the site in Chromium, light and dark, on a desktop and a phone
	$(PYTEST) tests/test_site.py

test: $(VENV)/.ready lint  ## everything that runs on a CPU in a few minutes
	$(PYTEST) -n 2 --dist worksteal -m "not slow and not gpu" --doctest-modules --doctest-ignore-import-errors src tests

test-all: $(VENV)/.ready lint  ## the slow tests too
	$(PYTEST) -n 2 --dist worksteal -m "not gpu" --doctest-modules --doctest-ignore-import-errors src tests

# Ray is large, and only these tests need it.
test-ray: $(VENV)/.ray  ## grids and scoring on a Ray cluster of two workers, which are killed on the way
	$(PYTEST) -m ray $$(grep -rl --include='*.py' mark.ray tests)

# The oldest torch that is supported, in an environment of its own: its wheel for Linux brings CUDA, several gigabytes.
OLDEST ?= .venv-oldest
test-oldest: $(OLDEST)/.ready  ## stream, activations, call sites and sampling on that torch
	OMP_NUM_THREADS=1 PYTHONPATH=src $(OLDEST)/bin/python -m pytest -q -n 2 -m "not slow and not gpu" \
		tests/test_random_stream.py tests/activations $(addprefix tests/call_sites/test_, forms.py numbering.py styles.py) \
		$(addprefix tests/sampling/test_, first_passes.py sample_independence.py adaptive.py balanced_draws.py)

# The newest torch, which a stranger's pip takes: in an environment of its own, for the same reason.
NEWEST ?= .venv-newest
test-newest: $(NEWEST)/.ready  ## everything that `make test` runs, on that torch
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(NEWEST)/bin/python -m pytest -q -n 2 --dist worksteal -m "not slow and not gpu" tests

test-gpu:  ## kernels against the reference; needs a CUDA device and no installation
	PYTHONPATH=src:. $(PYTHON) -m pytest -c tests/gpu.ini --rootdir . -m gpu $$(grep -rl --include='*.py' mark.gpu tests)
	PYTHONPATH=src:. $(PYTHON) benchmarks/kernel_check.py

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.ready  ## what random ReLUs cost on this CPU, against plain ones and against torch's own
	$(BIN)/python benchmarks/cpu_forward.py
	$(BIN)/python benchmarks/sampling_memory.py

bench-gpu:  ## kernels, training steps and sampling on a CUDA device; needs no installation
	PYTHONPATH=src:. $(PYTHON) benchmarks/kernels.py
	PYTHONPATH=src:. $(PYTHON) benchmarks/training_step.py
	PYTHONPATH=src:. $(PYTHON) benchmarks/mc_inference.py
	PYTHONPATH=src:. $(PYTHON) benchmarks/sampling_memory.py

# Rebuilt whenever the dependencies change. No uv or lock file: pip with a constraints file finds CPU wheels.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

$(VENV)/.ray: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]'
	touch $@

$(OLDEST)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(OLDEST)
	grep -v '^torch==\|^triton==' constraints.txt > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check -c $(OLDEST)/constraints.txt \
		torch==2.10.0 numpy scipy hypothesis pytest pytest-timeout pytest-xdist transformers
	touch $@

$(NEWEST)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(NEWEST)
	grep -v '^torch==\|^triton==' constraints.txt > $(NEWEST)/constraints.txt
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c $(NEWEST)/constraints.txt \
		torch==2.15.0 -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) $(OLDEST) $(NEWEST) build dist src/*.egg-info .mypy_cache .ruff_cache .hypothesis
