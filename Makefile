# make demo    the quickstart notebook in JupyterLab    (PORT=8899 BROWSER=none on a remote machine)
# make test    everything: ruff, mypy, pytest, the notebooks, the browser tests
# make lint    only ruff and mypy
# make bench   side by side with torch, under ten minutes    (ROWS=tiny,large for some rows; PEERS="paddle spdl grain
#              mxnet" makes those environments first; table.md and results.json in build/bench)
# make bench-gpu   uploads beside torch's; says so where there is no GPU    (table.md and results.json in build/bench-gpu)
# make soak    minutes of killing, restarting and comparing    (SECONDS=300)
# make soak-dashboard  the dashboard in a browser for ten minutes: does anything grow?    (SECONDS=1800)
# make faults  what each fault costs, measured: the table of the README
# make clean   take away .venv and what tools have left
#
# All of them work in .venv, which is made with PYTHON (3.10 or newer) when it is not there.

PYTHON  ?= python3
HOST    ?= 127.0.0.1
PORT    ?= 8888
BROWSER ?=
ROWS    ?=
PEERS   ?=
SECONDS ?= 300

VENV := .venv
PY   := $(VENV)/bin/python
PIP  := $(PY) -m pip --disable-pip-version-check --no-input
MADE := $(VENV)/.made

# Hundreds of processes import the package: it is compiled once, as where pip installs it.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: demo test lint bench bench-gpu soak soak-dashboard faults clean

demo: $(MADE)-demo
	@if [ "$(BROWSER)" = none ]; then \
	    echo "From another machine: ssh -L $(PORT):localhost:$(PORT) <this machine>, then open the URL below there."; \
	fi
	$(PY) -m jupyterlab --log-level=WARN --ServerApp.ip=$(HOST) --ServerApp.port=$(PORT) \
	    --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/notebooks/01_quickstart.ipynb \
	    $(if $(filter none,$(BROWSER)),--no-browser) $$([ "$$(id -u)" -ne 0 ] || echo --allow-root)

test: lint $(VENV)/kernels/ipykernel-6.30/.made $(VENV)/kernels/ipykernel-7.3/.made
	$(PY) -m pytest --nbval-lax --nbval-current-env --nbval-cell-timeout=60 tests notebooks

lint: $(MADE)-test
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

bench: $(MADE)-test $(foreach peer,$(PEERS),$(VENV)/peers/$(peer)/.made)
	$(PY) tests/bench/run.py --rows '$(ROWS)'

bench-gpu: $(MADE)-test
	$(PY) tests/bench/gpu.py

soak: $(MADE)-test
	NBLOADER_SOAK_SECONDS=$(SECONDS) $(PY) -m pytest -q tests/test_soak.py

soak-dashboard: $(MADE)-test
	SECONDS=$(or $(filter-out 300,$(SECONDS)),600) $(PY) tests/bench/soak_dashboard.py

faults: $(MADE)-test
	$(PY) tests/bench/faults.py

clean:
	rm -rf $(VENV) build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find nbloader tests notebooks -depth \( -name __pycache__ -o -name .ipynb_checkpoints \) -exec rm -rf {} +

# A file marks each step that was carried through; one that was interrupted is done again.

$(MADE):
	@command -v $(PYTHON) >/dev/null || { \
	    echo "There is no $(PYTHON) here. Install Python 3.10 or newer, or name one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "nbloader needs Python 3.10 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1)." \
	         "Name another one: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	touch $@

$(MADE)-demo: $(MADE) pyproject.toml constraints.txt
	$(PIP) install --quiet --constraint constraints.txt --editable '.[demo]'
	@# Nothing shall stand between the reader and the notebook: no question about news, no search for updates.
	@$(PY) -m jupyterlab.labextensions disable --level=sys_prefix @jupyterlab/apputils-extension:announcements 2>/dev/null
	touch $@

$(MADE)-test: $(MADE)-demo pyproject.toml constraints.txt
	$(PIP) install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

# Two more kernels for the browser tests: ipykernel handles a click during a busy cell in three different ways.
$(VENV)/kernels/ipykernel-%/.made: $(MADE)-test
	rm -rf $(@D)
	$(PIP) install --quiet --no-deps --target $(@D) 'ipykernel==$*.*'
	touch $@

# The loaders of others that `make bench` compares with, each in an environment of its own.
PACKAGE_OF_paddle := paddlepaddle
PACKAGE_OF_spdl := spdl torch
PACKAGE_OF_mxnet := mxnet 'numpy<1.24'
$(VENV)/peers/%/.made:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check --no-input install --quiet \
	    numpy psutil Pillow scikit-image $(or $(PACKAGE_OF_$*),$*)
	touch $@
