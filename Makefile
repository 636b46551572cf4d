# make report   the laptop-scale study: results/report.html and results/plots/scaling_laws.pdf
# make study    every experiment of the laptop scale
# make test     the tests (XLA=0 leaves the torch_xla environment out)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python -m trm study run --profile profiles/local

.PHONY: report study test lint bench clean
.DEFAULT_GOAL := report

$(VENV)/.ready: envs/cpu/requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 14) else f"Python 3.11, 3.12 or 3.13 is needed, not {v[0]}.{v[1]}: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)")'
	@echo "Setting up $(VENV) (about 1.8 GB, one to three minutes)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r envs/cpu/requirements.lock
	@# a path file, not an editable install: Snakemake finds plugins by looking through folders
	$(BIN)/python -c 'import os, pathlib, site; pathlib.Path(site.getsitepackages()[0], "trm_scaling.pth").write_text(os.getcwd() + "\n")'
	@touch $@

report: $(VENV)/.ready
	@$(RUN)

study: $(VENV)/.ready
	@$(RUN) --config experiments=study

test: $(VENV)/.ready
	$(BIN)/python -m pytest

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint --configfile profiles/local/workflow.yaml
