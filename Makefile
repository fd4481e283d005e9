# make demo    set up VENV, then compile and run the TLX kernels for every target here
# make test    set up VENV, then lint, type check and test
#
# TRITON is the release of Triton that goes into VENV:
#     make test TRITON=3.8.0 VENV=.venv-3.8.0

PYTHON ?= python3.11
TRITON ?= 3.9.0
VENV   ?= .venv
# Processes that pytest and lit spread their tests over.
JOBS   ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
# Set up for running, and for testing. One release at a time lives in VENV.
RUN  := $(VENV)/.set-up-to-run-$(TRITON)
TEST := $(VENV)/.set-up-to-test-$(TRITON)
# Fetches a wheel without installing it, whatever this machine's C library is.
FETCH := $(BIN)/python -m pip download -qq --disable-pip-version-check --no-deps \
	--only-binary :all: --platform manylinux_2_28_x86_64 --platform manylinux_2_34_x86_64
# torch is for running on a GPU, and for the tests.
GPU := $(wildcard /dev/nvidia0)

.PHONY: demo test lint types lit pytest clean
.DELETE_ON_ERROR:

demo: $(RUN)
	$(BIN)/remora demo

test: lint types lit pytest

lint: $(TEST)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(TEST)
	$(BIN)/mypy

lit: $(TEST)
	$(BIN)/lit -j $(JOBS) tests/lit examples/plugins/loop-split/tests/lit

pytest: $(TEST)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(RUN): requirements/run.txt requirements/build.txt requirements/torch.txt pyproject.toml | $(BIN)/python
	@echo "setting up $(VENV) with Triton $(TRITON); about a minute, once"
	@rm -f $(VENV)/.set-up-*
	$(PIP) $(if $(GPU),-r requirements/torch.txt) -r requirements/build.txt
	$(PIP) -r requirements/run.txt triton==$(TRITON)
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

# pip cannot see that the release replaces the Triton that torch may ask for: it comes last.
$(TEST): $(RUN) requirements/dev.txt requirements/corpus.txt requirements/peer.txt
	$(PIP) -r requirements/torch.txt
	$(PIP) --no-deps -r requirements/corpus.txt
	$(PIP) -r requirements/dev.txt -r requirements/run.txt triton==$(TRITON)
	grep == requirements/peer.txt | xargs -n 1 $(FETCH) --dest $(VENV)/peer
	@touch $@
