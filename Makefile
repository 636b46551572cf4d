# make report     the laptop-scale study: results/report.html and results/plots/scaling_laws.pdf
# make study      nine experiments of the laptop scale
# make test       the tests; XLA=0 leaves those of the TPU backend and of the GPU kernels out (their environment takes 7 GB)
# make rehearsal  the pipeline on an emulated TPU pod, with a preemption on the way
# make bench      ours against baselines
PYTHON ?= python3
VENV := .venv
TPU_VENV := .venv-tpu
BIN := $(VENV)/bin
RUN := $(BIN)/python -m trm study run --profile profiles/local
PIP := python -m pip install --quiet --disable-pip-version-check

# torch_xla has wheels for Linux on x86-64 only
XLA ?= $(if $(filter Linux-x86_64,$(shell uname -s)-$(shell uname -m)),1,0)

.PHONY: report study test test-xla lint bench rehearsal envs lock
.DEFAULT_GOAL := report

# a path file, not an editable install: Snakemake finds plugins by looking through folders
define PATH_FILE
import os, pathlib, site
sources = [os.getcwd(), os.path.join(os.getcwd(), "snakemake-executor-plugin-tpu", "src")]
pathlib.Path(site.getsitepackages()[0], "trm_scaling.pth").write_text("\n".join(sources) + "\n")
endef
export PATH_FILE
define PYTHON_CHECK
import sys
if not (3, 11) <= sys.version_info < (3, 14):
    sys.exit("Python 3.11, 3.12 or 3.13 is needed: make PYTHON=/path/to/python3.12 ...")
endef
export PYTHON_CHECK

$(VENV)/.ready: envs/cpu/requirements.lock
	@$(PYTHON) -c "$$PYTHON_CHECK"
	@echo "Setting up $(VENV) (about 1.8 GB, one to three minutes)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(PIP) -r envs/cpu/requirements.lock
	@$(BIN)/python -c "$$PATH_FILE"
	@touch $@

$(TPU_VENV)/.ready: envs/tpu/requirements.lock
	@$(PYTHON) -c "$$PYTHON_CHECK"
	@echo "Setting up $(TPU_VENV) for the tests of the TPU backend (about 7 GB, two to four minutes; XLA=0 leaves them out)"
	$(PYTHON) -m venv $(TPU_VENV)
	$(TPU_VENV)/bin/$(PIP) -r envs/tpu/requirements.lock
	@$(TPU_VENV)/bin/python -c "$$PATH_FILE"
	@touch $@

envs: $(VENV)/.ready $(TPU_VENV)/.ready

report: $(VENV)/.ready
	@$(RUN)

study: $(VENV)/.ready
	@$(RUN) --config experiments=study

test: $(VENV)/.ready $(if $(filter 1,$(XLA)),$(TPU_VENV)/.ready)
	$(BIN)/python -m pytest
	@$(if $(filter 1,$(XLA)),$(MAKE) --no-print-directory test-xla,echo "The tests of the TPU backend and of the GPU kernels are left out: they need torch_xla, which has wheels for Linux on x86-64 only (or XLA=0 was given)")

test-xla: $(TPU_VENV)/.ready
	$(TPU_VENV)/bin/python -m pytest tests/xla tests/network/cuda

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint --configfile profiles/local/workflow.yaml
	$(BIN)/python -m trm study schema --check

rehearsal: $(VENV)/.ready
	$(BIN)/python -m tests.rehearsal

bench: $(VENV)/.ready
	$(BIN)/python -m benchmarks.run

# after a change of envs/cpu/requirements.in
lock:
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/$(PIP) -r envs/cpu/requirements.in
	(echo "# Pinned versions, no hashes: pip takes the platform's own build of each (torch: CPU or CUDA)."; \
	  .venv-lock/bin/python -m pip freeze | sed 's/+cpu//') > envs/cpu/requirements.lock
	rm -rf .venv-lock
