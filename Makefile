# make lab    JupyterLab on the first notebook
# make test   what CI runs: lint, types, and all tests except the long sweeps; installs what it needs
# make test-quick   derivations, texts, errors and drawings, and numbers for one program per operation; make test-all: also the long sweeps, and random seeds
# make goldens   writes the golden texts again, with what is shown now, and says what has changed; goldens-latest: those of the newest JAX
# make mutants   plants faults one by one, each of which the tests that cover it have to find; MUTANTS=… selects some
# make demo   the first notebook's program, without a display
# make screenshots   pictures of each pane, in both themes and at two widths
# make docs   the site in docs/_build/html, with a Jupyter that runs in the browser; runs its code, and keeps the output until the code or jaxviz changes; make docs-links: checks external links
# make lock   the versions that Binder installs, in binder/lock.txt; needs Python 3.12
# make bench  speed and memory compared with JAX's
# make device   everything that depends on the device, checked on this machine's accelerator with the packages that it has; see benchmarks/device
# make test-jax JAX_CHECKOUT=…   JAX's own tests, run with jaxviz, from a checkout of JAX at the tag of the installed version; test-jax-latest: the newest
# make test-lowest   tests with the lowest version of each dependency
# make test-latest   the engine's tests with the newest JAX, which needs Python 3.12; make test-latest JAX=0.11: with the newest JAX 0.11, and the check of a device
# make test-libraries   real programs of other libraries, in a separate environment; make docs-libraries: also updates their table in the docs
# make test-flags   the flags of the newest JAX on programs of other libraries too, in one more environment
# Other interpreters: make test PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := .stamps
NOTEBOOKS := $(patsubst %.py,%.ipynb,$(wildcard notebooks/*.py))
BUNDLE_SOURCES := $(shell find widgets/src -type f) widgets/package.json widgets/package-lock.json widgets/build.mjs
# A kernel waits when it starts and ends, so that three pages are run at a time on two cores.
SPHINX := $(BIN)/python -m sphinx --fresh-env --fail-on-warning --keep-going --jobs 3 --quiet
# Three workers for two cores: tests that drive a browser or start a process often wait.
SPREAD := -n 3 --dist worksteal
PYTEST := $(BIN)/python -m pytest $(SPREAD)

# Each version of JAX has its own environment.
JAX ?=
LATEST := .venv-latest$(JAX:%=-%)
PYTHON_LATEST ?= $(shell for p in python3.12 $${PYENV_ROOT:-$$HOME/.pyenv}/versions/3.12*/bin/python3.12; do \
	"$$p" -c "" 2>/dev/null && { echo "$$p"; break; }; done)

LIBRARIES := .venv-libraries
WITH_FLAGS := .venv-flags

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Test processes share the bytecode of jaxviz, whatever the shell's settings.
export PYTHONDONTWRITEBYTECODE :=
# An editable install would run npm again, which rewrites package-lock.json, and so make Make start over.
INSTALL := SKIP_JUPYTER_BUILDER=1 $(BIN)/python -m pip install --quiet --editable

.PHONY: goldens goldens-latest lock docs docs-cleared docs-pages docs-lite docs-links lab test test-flags test-quick test-all pytest-quick pytest-short pytest-all mutants test-latest test-lowest test-libraries docs-libraries test-jax test-jax-latest checkout print-latest lint check-widgets demo bench device screenshots notebooks browser clean
.DELETE_ON_ERROR:
# npm and pip install in parallel, lint and the widgets' tests run in parallel with pytest, which often waits for browsers, and the site's
# pages are made in parallel with its Jupyter.
MAKEFLAGS += --jobs=2

$(STAMPS)/venv:
	@command -v $(PYTHON) >/dev/null || { echo "jaxviz needs Python 3.11 or newer; '$(PYTHON)' was not found"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/node: widgets/package.json widgets/package-lock.json
	@command -v npm >/dev/null || { echo "An install from a checkout needs Node 20 or newer with npm; it was not found"; exit 1; }
	cd widgets && npm ci --no-audit --no-fund --loglevel=error
	@mkdir -p $(STAMPS) && touch $@

jaxviz/static/explorer.js: $(STAMPS)/node $(BUNDLE_SOURCES)
	cd widgets && npm run --silent build
	@touch $@

$(STAMPS)/install: $(STAMPS)/venv jaxviz/static/explorer.js pyproject.toml
	$(INSTALL) '.[lab]'
	@touch $@

$(STAMPS)/install-test: $(STAMPS)/install
	$(INSTALL) '.[test]'
	@touch $@

notebooks/%.ipynb: notebooks/%.py $(STAMPS)/install
	$(BIN)/jupytext --quiet --to ipynb --output $@ $<

notebooks: $(NOTEBOOKS)

# A saved notebook includes the state of all its widgets.
$(VENV)/etc/jupyter/labconfig/default_setting_overrides.json: binder/lab_settings.json $(STAMPS)/venv
	@mkdir -p $(@D)
	cp $< $@

lab: $(STAMPS)/install jaxviz/static/explorer.js notebooks $(VENV)/etc/jupyter/labconfig/default_setting_overrides.json
	$(BIN)/jupyter lab notebooks/00_first_look.ipynb $(if $(filter 0,$(shell id -u)),--allow-root) $(LAB_FLAGS)

demo: $(STAMPS)/install jaxviz/static/explorer.js
	$(BIN)/python notebooks/00_first_look.py
	@echo "The explorer is in first_look.html, a file that opens in a browser without a kernel."

bench: $(STAMPS)/install-test jaxviz/static/explorer.js browser
	$(BIN)/python -m benchmarks

# Nothing is installed: a machine with an accelerator may have no network.
device:
	$(PYTHON) -m benchmarks.device $(DEVICE_FLAGS)

browser:
	@{ command -v chromium && command -v dot; } >/dev/null || if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium graphviz >/dev/null; \
	else \
		echo "The tests need Chromium and Graphviz (as root: apt-get install chromium graphviz)"; exit 1; \
	fi

# The packages of a new environment with Binder's Python, so that its image can be reproduced.
lock: jaxviz/static/explorer.js
	@command -v "$(PYTHON_LATEST)" >/dev/null || { echo "make lock needs Python 3.12; set PYTHON_LATEST to one"; exit 1; }
	rm -rf $(STAMPS)/lock
	$(PYTHON_LATEST) -m venv $(STAMPS)/lock
	SKIP_JUPYTER_BUILDER=1 $(STAMPS)/lock/bin/python -m pip install --quiet '.[lab]'
	{ echo "# The versions that Binder installs; 'make lock' updates them."; \
		$(STAMPS)/lock/bin/python -m pip freeze --exclude jaxviz-lab; } > binder/lock.txt
	rm -rf $(STAMPS)/lock

$(STAMPS)/install-docs: $(STAMPS)/install
	$(INSTALL) '.[docs]'
	@touch $@

docs: docs-pages docs-lite

docs-cleared: $(STAMPS)/install-docs jaxviz/static/explorer.js
	rm -rf docs/_build/html

docs-pages: docs-cleared
	$(SPHINX) -b html docs docs/_build/html

docs-lite: docs-cleared
	$(BIN)/python docs/lite/build.py docs/_build/html/lite

docs-links: $(STAMPS)/install-docs jaxviz/static/explorer.js
	JAXVIZ_DOCS_RUN=0 $(SPHINX) -b linkcheck docs docs/_build/linkcheck

screenshots: $(STAMPS)/install-test jaxviz/static/explorer.js browser
	PYTHONPATH=$(CURDIR):$(CURDIR)/docs:$(CURDIR)/tests $(BIN)/python docs/screenshots.py

lint: $(STAMPS)/install-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

check-widgets: $(STAMPS)/node
	cd widgets && npm run --silent check && npm run --silent test

pytest-quick: $(STAMPS)/install-test jaxviz/static/explorer.js
	$(PYTEST) -m 'not slow and not browser'

pytest-short: $(STAMPS)/install-test jaxviz/static/explorer.js browser
	$(PYTEST) -m 'not slow(sweep=True)'

pytest-all: $(STAMPS)/install-test jaxviz/static/explorer.js browser
	JAXVIZ_TESTS_OPTIMIZED=1 $(PYTEST) --hypothesis-profile random

test-quick: pytest-quick lint check-widgets
test: pytest-short lint check-widgets
test-all: pytest-all lint check-widgets

goldens: $(STAMPS)/install-test jaxviz/static/explorer.js
	JAXVIZ_GOLDENS=write $(PYTEST) -k transcript tests
	git --no-pager diff tests/goldens

goldens-latest: $(STAMPS)/install$(LATEST:.venv%=%)
	JAXVIZ_GOLDENS=write $(LATEST)/bin/python -m pytest $(SPREAD) -k transcript tests $(NOT_WITH_LATEST)
	git --no-pager diff tests/goldens

mutants: $(STAMPS)/install-test jaxviz/static/explorer.js
	$(BIN)/python tests/mutants $(MUTANTS)

$(STAMPS)/install$(LATEST:.venv%=%): jaxviz/static/explorer.js pyproject.toml
	@command -v "$(PYTHON_LATEST)" >/dev/null || { echo "make test-latest needs Python 3.12; set PYTHON_LATEST to one"; exit 1; }
	$(PYTHON_LATEST) -m venv $(LATEST)
	SKIP_JUPYTER_BUILDER=1 $(LATEST)/bin/python -m pip install --quiet --editable '.[test-engine]' '$(if $(JAX),jax==$(JAX).*,jax>=0.12)'
	@mkdir -p $(STAMPS) && touch $@

# The version of JAX on which the check of a device is tried: what machines with accelerators are expected to have.
DEVICE_JAX := 0.11
TESTS ?= tests
NOT_WITH_LATEST := --ignore=tests/notebook --ignore=tests/browser --ignore=tests/packaging --ignore=tests/binder \
	--ignore-glob='tests/test_libraries*.py'
test-latest: $(STAMPS)/install$(LATEST:.venv%=%)
	$(LATEST)/bin/python -m pytest $(SPREAD) -m 'not slow(sweep=True)' $(TESTS) $(NOT_WITH_LATEST)
	$(if $(filter $(DEVICE_JAX)%,$(JAX)),$(LATEST)/bin/python -m pytest tests/benchmarks/test_device.py -k whole_check)

# The other tests of libraries expect the versions of JAX that these are released for.
$(STAMPS)/install-flags: jaxviz/static/explorer.js pyproject.toml
	$(PYTHON_LATEST) -m venv $(WITH_FLAGS)
	SKIP_JUPYTER_BUILDER=1 $(WITH_FLAGS)/bin/python -m pip install --quiet --editable '.[test-engine,test-flags]' 'jax>=0.12'
	@mkdir -p $(STAMPS) && touch $@

test-flags: $(STAMPS)/install-flags
	$(WITH_FLAGS)/bin/python -m pytest $(SPREAD) tests/test_flag_matrix.py

$(STAMPS)/install-lowest: jaxviz/static/explorer.js pyproject.toml
	$(PYTHON) -m venv .venv-lowest
	$(PYTHON) tests/packaging/lowest.py | .venv-lowest/bin/python -m pip install --quiet --requirement /dev/stdin
	SKIP_JUPYTER_BUILDER=1 .venv-lowest/bin/python -m pip install --quiet --no-deps --editable .
	@mkdir -p $(STAMPS) && touch $@

# Old versions warn of newer Pythons and packages.
test-lowest: $(STAMPS)/install-lowest
	.venv-lowest/bin/python -m pytest $(SPREAD) -m 'not slow(sweep=True)' -W ignore::DeprecationWarning \
		tests/report tests/page tests/notebook/test_magics.py tests/features tests/xla tests/test_cli.py tests/test_transcripts.py

$(STAMPS)/install-libraries: jaxviz/static/explorer.js pyproject.toml tests/libraries/requirements.txt tests/libraries/requirements_alone.txt
	$(PYTHON) -m venv $(LIBRARIES)
	SKIP_JUPYTER_BUILDER=1 $(LIBRARIES)/bin/python -m pip install --quiet --requirement tests/libraries/requirements.txt --editable .
	$(LIBRARIES)/bin/python -m pip install --quiet --no-deps --requirement tests/libraries/requirements_alone.txt
	@mkdir -p $(STAMPS) && touch $@

test-libraries: $(STAMPS)/install-libraries
	$(LIBRARIES)/bin/python -m pytest tests/libraries/corpus.py tests/libraries/collectives_of_models.py tests/features/remat/test_remat_code.py \
		tests/runs/test_trainers.py -k "corpus or penzai or collectives or brax or jax_md"; status=$$?; \
		$(LIBRARIES)/bin/python tests/libraries/table.py; exit $$status

docs-libraries: test-libraries
	$(LIBRARIES)/bin/python tests/libraries/table.py docs/libraries.md

# JAX's tests of its transforms, with jaxviz's functions instead of JAX's; see tests/jax_suite.
JAX_CHECKOUT ?=
JAX_TESTS = $(addprefix $(JAX_CHECKOUT)/tests/,custom_api_test.py api_test.py lax_autodiff_test.py mutable_array_test.py $(MORE_JAX_TESTS))
ON_JAXVIZ = -p replaced_by_jaxviz -c $(JAX_CHECKOUT)/pyproject.toml --rootdir $(JAX_CHECKOUT) -p no:cacheprovider $(JAX_TESTS) \
	-k "Remat or CustomJVP or CustomVJP or LinearizeTest or JaxprTest or CustomVmap or CustomApi or LaxAutodiff or MutableArray or Hijax or BoxTest or LogTest"

checkout:
	@test -f "$(JAX_CHECKOUT)/tests/api_test.py" || { echo "set JAX_CHECKOUT to a checkout of JAX at the tag of the version installed"; exit 1; }

# Mutable hi types are gone since JAX 0.11.1.
test-jax: MORE_JAX_TESTS := hijax_test.py
test-jax: checkout $(STAMPS)/install-test
	$(BIN)/python -m pip install --quiet absl-py
	PYTHONPATH=$(CURDIR)/tests/jax_suite $(BIN)/python -m pytest $(SPREAD) $(ON_JAXVIZ)

test-jax-latest: checkout $(STAMPS)/install$(LATEST:.venv%=%)
	$(LATEST)/bin/python -m pip install --quiet absl-py
	PYTHONPATH=$(CURDIR)/tests/jax_suite $(LATEST)/bin/python -m pytest $(SPREAD) $(ON_JAXVIZ)

print-latest:
	@echo $(PYTHON_LATEST)

clean:
	rm -rf $(VENV) .venv-latest* .venv-lowest $(LIBRARIES) $(STAMPS) widgets/node_modules jaxviz/static .jax_cache artifacts build dist notebooks/*.ipynb docs/_build docs/tutorials/*.py
