# Each target sets itself up: needs python3 (3.11 or newer), make and a C compiler, nothing else.
PYTHON ?= python3
PY := .venv/bin/python
BIN := .venv/bin
READY := .venv/ready
# JupyterLab asks for news at its first start, unless it is told not to.
SETTINGS := .venv/share/jupyter/lab/settings
NO_NEWS := {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": false}}
QUICK := mesh mark look forecast/test_fisher.py forecast/test_fisher_bootstrap.py train/test_training.py \
	train/test_contrast.py train/test_negatives.py test_disk.py test_notebook.py test_numbers.py

.PHONY: help lab demo quick test test-gpu faults bench experiment notebooks site studio lock clean

help:
	@echo "make lab        open JupyterLab on the start page"
	@echo "make demo       run every notebook headless with papermill, into runs/demo/"
	@echo "make quick      style, layers and the unit tests that matter while editing, under a minute"
	@echo "make test       everything CI runs: style, unit tests, notebooks cell by cell"
	@echo "make faults     kills, full disks and bad input, a hundred times each, with a table at the end: an hour or two"
	@echo "make test-gpu   on a machine with a card: notebook 03 trains there, goes on, and measures what the CPU does"
	@echo "make bench      performance table, also written to runs/bench.json"
	@echo "make experiment the whole paper on the mini suite, hours; stop it at any time, the next call goes on"
	@echo "                PRESET=quijote DATA_ROOT=... DEVICE=cuda: the paper on those boxes, into runs/experiment/"
	@echo "make notebooks  run the notebooks and store their outputs, after a change"
	@echo "make site       the notebooks as a static site with living explorers, into runs/site/"
	@echo "make studio     the mark studio alone, a page without code or kernel, into runs/site/studio.html"
	@echo "make lock       write requirements.lock anew from what .venv holds"
	@echo "make clean      remove .venv and caches (runs/ stays)"

lab: $(READY)
	@mkdir -p $(SETTINGS) && echo '$(NO_NEWS)' > $(SETTINGS)/overrides.json
	$(PY) -m jupyterlab --notebook-dir=. --LabApp.default_url=/lab/tree/notebooks/index.ipynb \
		--ContentsManager.hide_globs="['__pycache__', 'conftest.py', '*.egg-info']"

demo: $(READY)
	@mkdir -p runs/demo
	@for nb in notebooks/[0-9][0-9]_*.ipynb; do \
		echo "== $$nb"; \
		$(PY) -m papermill --no-progress-bar "$$nb" "runs/demo/$$(basename "$$nb")" || exit 1; \
	done

quick: $(READY)
	$(PY) -m ruff check .
	$(BIN)/lint-imports
	$(PY) -m pytest -q -k "not gradcheck and not failing_process" $(addprefix tests/,$(QUICK))

test: $(READY)
	@$(PY) tests/browser.py
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(BIN)/lint-imports
	$(PY) -m pytest --nbval

faults: $(READY)
	FAULTS=100 $(PY) -m pytest -q tests/faults

test-gpu: $(READY)
	$(PY) -m pytest -m gpu tests/train

bench: $(READY)
	$(PY) tests/bench.py

ASKED := $(if $(DATA_ROOT),--data-root="$(DATA_ROOT)") $(if $(DEVICE),--device=$(DEVICE))
OTHER := $(filter-out mini,$(PRESET))$(strip $(ASKED))
experiment: $(READY)
	$(PY) figures/$(if $(OTHER),paper.py --preset=$(or $(PRESET),mini) $(ASKED),experiment.py)

notebooks: $(READY)
	$(PY) figures/gallery.py

site: $(READY)
	$(PY) figures/pages.py

studio: $(READY)
	$(PY) figures/pages.py studio

lock: $(READY)
	$(PY) -m pip freeze --exclude-editable | sed 's/+cpu$$//; s/+cu[0-9]*$$//' > requirements.lock

clean:
	rm -rf .venv .pytest_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): requirements.lock pyproject.toml
	@command -v "$(PYTHON)" >/dev/null || { echo "Python is missing: '$(PYTHON)' was not found; install python 3.11 or newer, or name one with 'make PYTHON=...'."; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python is too old: '$(PYTHON)' is $$("$(PYTHON)" -V 2>&1), 3.11 or newer is needed; name one with 'make PYTHON=...'."; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "Python's venv module is missing; install it (on Debian and Ubuntu: the package python3-venv)."; exit 1; }
	@"$(PYTHON)" -c 'import os, sysconfig; os.stat(os.path.join(sysconfig.get_path("include"), "Python.h"))' 2>/dev/null || { echo "Python's C headers are missing (Pylians is built from source); install them (on Debian and Ubuntu: the package python3-dev)."; exit 1; }
	@command -v "$${CC:-cc}" >/dev/null || command -v gcc >/dev/null || { echo "A C compiler is missing (Pylians is built from source); install gcc or clang."; exit 1; }
	@echo "Setting up .venv with the versions of requirements.lock: once, about five minutes (Pylians is compiled)."
	@"$(PYTHON)" -m venv .venv
	@$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $(READY)
