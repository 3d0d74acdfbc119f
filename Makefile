# make demo            open the quickstart notebook in JupyterLab (PORT=8899 BROWSER=none on a remote machine)
# make demo-cluster    open the notebook that loses a node of a simulated Ray cluster of four (PORT, BROWSER as above)
# make check           lint, type check, import contracts and the unit tests: under a minute on two cores
# make test            everything: lint, the documentation, test-portable, all tests, the notebooks, the browser tests
# make test-portable   the tests of loading, faults, resuming, threads and start-up with what macOS and Windows use
# make pythons         the tests of the loader with another Python or torch, in an environment of its own below
#                      .venv/pythons (PYTHON=python3.14 TORCH=2.14.1)
# make docs            build the documentation into build/site; warnings and broken links are errors
# make lint            ruff, mypy, the import contracts, and the style of the documentation
# make bench           benchmark against torch, in under ten minutes (ROWS=tiny,large selects rows; ROWS=startup
#                      those of large packages, ROWS=samples those of samples of packages, where they are installed;
#                      PEERS="paddle spdl grain mxnet" adds other loaders); writes table.md and results.json to
#                      build/bench
# make bench-gpu       benchmark of uploads against torch, and of four ways to upload; needs a GPU; writes to
#                      build/bench-gpu
# make bench-ray       benchmark of workers on a Ray cluster of simulated nodes, against Ray's own transfer and Ray Data,
#                      and of what a batch costs the notebook's process; also `make bench ROWS=ray`
# make soak            stress test: kill, restart, resize and compare every batch (SECONDS=300)
# make fuzz            random loaders under random faults, controls and resumptions; prints its seed (SECONDS=300 SEED=7)
# make forks           what does not survive a fork, TIMES=50 times each: loaders that work, heal, fail or hang
# make soak-dashboard  run the dashboard in a browser and check that nothing grows (SECONDS=600)
# make soak-explorer   scroll through a million samples in a browser and check that nothing grows (SECONDS=600)
# make front-ends      try the dashboard and the explorer in JupyterLab with old and new kernels, marimo, Voila, nbconvert,
#                      papermill, a terminal (ROWS=marimo,voila selects rows); writes docs/how-to/front-ends.md
# make faults          measure how long recovery from each fault takes: the table in
#                      docs/explanation/benchmarks.md
# make bench-diagnosis how often the verdict is right (loaders with planted causes; ONLY=collate,lock SEEDS=3
#                      SIZES=0.5,1,2; LIVE=1 for a live view), and how close predictions and the tuner come
#                      (ONLY=predictions, ONLY=tuner); writes to build/planted
# make bench-remedies  slow loaders as found in forums: the cause, the line and the remedy that the screen names, and what
#                      it gains; writes the table into docs/explanation/benchmarks.md (ONLY=json,lock selects loaders and
#                      leaves the page alone)
# make release-check   build sdist and wheel into build/release, check their metadata, install and use each in an empty
#                      environment
# make clean           remove .venv, caches and build outputs
#
# All other targets use .venv, which is created with PYTHON (3.10 or newer) when it does not exist.

PYTHON  ?= python3
HOST    ?= 127.0.0.1
PORT    ?= 8888
BROWSER ?=
SEED    ?=
ROWS    ?=
PEERS   ?=
SECONDS ?= 300
TIMES   ?= 50
ONLY    ?=
SEEDS   ?=
SIZES   ?=
TORCH   ?= $(shell sed -n 's/^torch==//p' constraints.txt)

VENV := .venv
PY   := $(VENV)/bin/python
PIP  := $(PY) -m pip --disable-pip-version-check --no-input
MADE := $(VENV)/.made

# The tests start hundreds of processes that import the package: let Python cache the bytecode, as pip does.
unexport PYTHONDONTWRITEBYTECODE

define CHECK_PYTHON
command -v $(PYTHON) >/dev/null || { \
	    echo "There is no $(PYTHON) here. Install Python 3.10 or newer, or name one: make PYTHON=python3.12" >&2; exit 1; }; \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "nbloader needs Python 3.10 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1)." \
	         "Name another one: make PYTHON=python3.12" >&2; exit 1; }
endef

.DELETE_ON_ERROR:
.PHONY: demo demo-cluster check test test-all test-portable pythons lint docs release-check bench bench-gpu bench-ray soak fuzz forks soak-dashboard soak-explorer front-ends faults bench-diagnosis bench-remedies clean

demo: NOTEBOOK := 01_quickstart
demo: $(MADE)-demo
demo-cluster: NOTEBOOK := 04_many_machines
demo-cluster: $(MADE)-ray
demo demo-cluster:
	@if [ "$(BROWSER)" = none ]; then \
	    echo "From another machine: ssh -L $(PORT):localhost:$(PORT) <this machine>, then open the URL below there."; \
	fi
	$(PY) -m jupyterlab --log-level=WARN --ServerApp.ip=$(HOST) --ServerApp.port=$(PORT) \
	    --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/notebooks/$(NOTEBOOK).ipynb \
	    $(if $(filter none,$(BROWSER)),--no-browser) $$([ "$$(id -u)" -ne 0 ] || echo --allow-root)

test:
	@$(MAKE) --no-print-directory --jobs=2 lint docs
	@$(MAKE) --no-print-directory --keep-going test-portable test-all

# Several processes share the tests, see tests/conftest.py.
PYTEST := $(PY) -m pytest --numprocesses=auto --no-loadscope-reorder --max-worker-restart=0
KERNELS := 6.30 7.0 7.3
test-all: $(MADE)-test $(VENV)/recipes/.made $(KERNELS:%=$(VENV)/kernels/ipykernel-%/.made)
	@# tests/test_course.py runs the notebooks of the course, with the key filled in.
	$(PYTEST) --durations=20 --nbval-lax --nbval-current-env --nbval-cell-timeout=120 \
	    --junit-xml=build/test/results.xml --ignore=notebooks/course tests notebooks

# NBLOADER_PLATFORM selects what nbloader uses of the system: nothing of Linux.
test-portable: $(MADE)-test
	NBLOADER_PLATFORM=portable $(PYTEST) -m portable $$(grep -l mark.portable tests/test_*.py)

# What depends on the versions of Python and torch: loading, faults, resuming, threads, start-up, transport, the cache.
LOADER_TESTS := loader iterable collate chunks rows serialize path determinism samplers config \
    faults fault_stages on_error timeouts silent_faults leaving closing signals debug stacks hot_lines \
    resume saved_states replay \
    threads free_threading local_engine seeders async \
    zygote environment worker_kinds worker_parts fetcher platform \
    channel shm share shared memory transfer torch_backend \
    cached cached_contract cache_store

# The environment is named after what it has, such as 3.14t-torch-2.14.1.
VERSION := import sys; print("%d.%d" % sys.version_info[:2] + sys.abiflags)
pythons: ENV = $(VENV)/pythons/$(shell $(PYTHON) -c '$(VERSION)' 2>/dev/null)-torch-$(TORCH)
pythons:
	@$(CHECK_PYTHON)
	@$(MAKE) --no-print-directory $(ENV)/.made
	$(ENV)/bin/python -m pip --disable-pip-version-check list
	$(ENV)/bin/python -m pytest $(LOADER_TESTS:%=tests/test_%.py)

check: lint
	$(PY) -m pytest -q -m 'unit and not slow' tests

docs: $(MADE)-docs
	@rm -rf build/site # pages that were removed
	$(PY) -m sphinx --fail-on-warning --keep-going --quiet --fresh-env --builder html docs build/site
	$(PY) docs/check_site.py build/site

lint: $(MADE)-test
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports --no-logo
	$(PY) docs/prose.py

release-check: $(MADE)-release
	rm -rf build/release
	$(PY) -m build --outdir build/release .
	$(PY) -m twine check --strict build/release/*
	$(PY) tests/release_check.py build/release

ifeq ($(ROWS),ray)
bench: bench-ray
else
bench: $(MADE)-test $(foreach peer,$(PEERS),$(VENV)/peers/$(peer)/.made)
	$(PY) tests/bench/run.py --rows '$(ROWS)'
endif

bench-gpu: $(MADE)-test
	$(PY) tests/bench/gpu.py
	$(PY) tests/bench/uploads.py

bench-ray: $(MADE)-test
	$(PY) tests/bench/cluster_driver.py
	$(PY) tests/bench/cluster.py

soak: $(MADE)-test
	NBLOADER_SOAK_SECONDS=$(SECONDS) $(PY) -m pytest -q -o faulthandler_timeout=0 tests/test_soak.py

fuzz: $(MADE)-test
	$(PY) tests/fuzz.py --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

forks: $(MADE)-test
	$(PY) tests/fork_stress.py --times $(TIMES)

soak-dashboard: $(MADE)-test
	SECONDS=$(or $(filter-out 300,$(SECONDS)),600) $(PY) tests/bench/soak_dashboard.py

soak-explorer: $(MADE)-test
	SECONDS=$(or $(filter-out 300,$(SECONDS)),600) $(PY) tests/bench/soak_explorer.py

front-ends: $(MADE)-test
	$(PY) tests/front_ends/run.py --rows '$(ROWS)'

faults: $(MADE)-test
	$(PY) tests/bench/faults.py

bench-diagnosis: $(MADE)-test
ifeq ($(filter predictions tuner,$(ONLY)),)
	$(PY) tests/planted.py $(if $(ONLY),--only '$(ONLY)') $(if $(SEEDS),--seeds $(SEEDS)) $(if $(SIZES),--sizes $(SIZES)) $(if $(LIVE),--live)
endif
ifneq ($(or $(filter predictions tuner,$(ONLY)),$(if $(ONLY),,all)),)
	$(PY) tests/predictions.py $(if $(ONLY),--only '$(ONLY)')
endif

bench-remedies: $(MADE)-slow
	$(PY) tests/bench/remedies.py $(if $(ONLY),--only '$(ONLY)')

clean:
	rm -rf $(VENV) build dist *.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find nbloader tests notebooks -depth \( -name __pycache__ -o -name .ipynb_checkpoints \) -exec rm -rf {} +

# Each installation step leaves a marker file when it succeeds; an interrupted step runs again.

$(MADE):
	@$(CHECK_PYTHON)
	$(PYTHON) -m venv $(VENV)
	touch $@

$(MADE)-demo: $(MADE) pyproject.toml constraints.txt
	$(PIP) install --quiet --constraint constraints.txt --editable '.[demo]'
	@# Disable JupyterLab's news prompt and update check.
	@$(PY) -m jupyterlab.labextensions disable --level=sys_prefix @jupyterlab/apputils-extension:announcements 2>/dev/null
	touch $@

$(MADE)-test: $(MADE)-demo pyproject.toml constraints.txt
	$(PIP) install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

$(MADE)-ray: $(MADE)-demo pyproject.toml constraints.txt
	$(PIP) install --quiet --constraint constraints.txt --editable '.[ray]'
	touch $@

# What slow loaders use, and what is faster. torchvision must be the one of torch's release.
$(MADE)-slow: $(MADE)-test pyproject.toml constraints.txt
	$(PIP) install --quiet --constraint constraints.txt h5py requests transformers orjson threadpoolctl torchvision
	touch $@

$(MADE)-docs: $(MADE)-test pyproject.toml constraints.txt
	$(PIP) install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

$(MADE)-release: $(MADE) pyproject.toml constraints.txt
	$(PIP) install --quiet --constraint constraints.txt 'build>=1.2,<2' 'twine>=6,<8'
	touch $@

# More kernels for the browser tests: these versions of ipykernel handle clicks during a busy cell differently.
$(VENV)/kernels/ipykernel-%/.made: $(MADE)-test
	rm -rf $(@D)
	$(PIP) install --quiet --no-deps --target $(@D) 'ipykernel==$*.*'
	touch $@

# Packages that recipes of the documentation use, apart from the others: pandas behaves differently beside pyarrow, and
# a module of tests has the name of a package.
$(VENV)/recipes/.made: $(MADE)-test
	rm -rf $(@D)
	$(PIP) install --quiet --no-deps --target $(@D) av datasets dill multiprocess obstore pyarrow xxhash
	touch $@

# Without constraints.txt, so that the newest versions of all packages but torch are tested.
$(VENV)/pythons/%/.made: pyproject.toml
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check --no-input install --quiet \
	    'torch==$(TORCH)' --editable '.[loader-tests]'
	touch $@

# Other loaders for `make bench PEERS=...`, each in its own environment.
PACKAGE_OF_paddle := paddlepaddle
PACKAGE_OF_spdl := spdl torch
PACKAGE_OF_mxnet := mxnet 'numpy<1.24'
$(VENV)/peers/%/.made:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check --no-input install --quiet \
	    numpy psutil Pillow scikit-image $(or $(PACKAGE_OF_$*),$*)
	touch $@
