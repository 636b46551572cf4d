# make report     the laptop study: results/report.html and results/plots/scaling_laws.pdf (ARGS=-p: all of Snakemake's output)
# make study      the larger laptop study (about two hours)
# make fetch      download what the report of a scale reads (SCALE=gpu), for compute nodes without internet
# make test       the core tests, on any machine, a few minutes
# make test-all   every test: emulated pod, Slurm, browser, TPU backend (a second environment of 8 GB)
# make lint       ruff, types, snakefmt, snakemake --lint, generated files, the language of documents and messages
# make schema     write the generated files, after a new experiment, task, optimiser, setting or kind of figure
# make rehearsal  the pipeline on an emulated TPU pod, with a bad host, a preemption and a hang
# make bench      our code against baselines
# make docs       the documentation site, into site/
# make notebooks  Jupyter with the project's environment
# make shell      a shell with the environment activated
PYTHON ?= python3
VENV := .venv
TPU_VENV := .venv-tpu
BIN := $(VENV)/bin
RUN := $(BIN)/python -m trm study run --profile profiles/local

# pip for torch, whose build its configuration may choose; uv for the rest, which takes a third of the time, or pip.
# --no-compile: Python compiles the third of torch that is imported at its first import.
pip = $(1)/bin/python -m pip install --quiet --disable-pip-version-check
uv = $(1)/bin/python -m uv pip install --quiet --python $(1)/bin/python
# what installers print goes to a file, and is shown where they fail
log = >>$(1)/setup.log 2>&1
shown = { tail -n 30 $(1)/setup.log >&2; echo "The whole output: $(1)/setup.log" >&2; exit 1; }

# Builds of torch for other drivers, by uv: make envs CUDA=cu126, or CUDA=cpu (docs/cluster.md)
TORCH_OPTIONS = $(if $(CUDA),--torch-backend=$(CUDA) --reinstall-package torch)
OTHER_BUILD = $(filter-out $(shell cat $(VENV)/.cuda 2>/dev/null),$(CUDA))
SCALE ?= gpu

# torch_xla has wheels for Linux on x86-64 and Python up to 3.13 only
HAS_XLA = import platform, sys; print(int(platform.system() + platform.machine() == "Linuxx86_64" and sys.version_info < (3, 14)))
ifndef XLA
XLA := $(shell $(firstword $(wildcard $(BIN)/python) $(PYTHON)) -c '$(HAS_XLA)')
endif

.PHONY: report study fetch schema test test-all test-full test-services test-xla test-image coverage lint types docs notebooks shell bench rehearsal envs lock again
.DEFAULT_GOAL := report

# A path file, not an editable install: Snakemake finds plugins by listing folders.
define PATH_FILE
import os, pathlib, site
sources = [os.getcwd(), os.path.join(os.getcwd(), "snakemake-executor-plugin-tpu", "src")]
pathlib.Path(site.getsitepackages()[0], "trm_scaling.pth").write_text("\n".join(sources) + "\n")
endef
export PATH_FILE
define PYTHON_CHECK
import sys
if not (3, 11) <= sys.version_info < (3, 15):
    sys.exit("Python 3.11 to 3.14 is needed: make PYTHON=/path/to/python3.12 ...")
endef
export PYTHON_CHECK

# Snakemake's immutables has no wheels for Python 3.14, but works without its part in C, which takes a compiler
export IMMUTABLES_EXT := 0

# some containers set it: thousands of short processes would compile the sources anew
unexport PYTHONDONTWRITEBYTECODE

$(VENV)/.ready: envs/cpu/requirements.lock envs/cpu/torch.txt $(if $(OTHER_BUILD),again)
	@$(PYTHON) -c "$$PYTHON_CHECK"
	@echo "Setting up $(VENV) (about 2 GB, with CUDA 5.6 GB; one to three minutes)"
	@$(PYTHON) -m venv $(VENV)
	@$(call pip,$(VENV)) uv==0.13.9 $(call log,$(VENV)) || \
	  echo "uv cannot be installed; pip installs the rest, which takes longer"
	@$(call uv,$(VENV)) --no-deps --require-hashes -r envs/cpu/requirements.lock $(call log,$(VENV)) || \
	  $(call pip,$(VENV)) --no-deps --require-hashes -r envs/cpu/requirements.lock $(call log,$(VENV)) || \
	  $(call shown,$(VENV))
	@$(BIN)/python -c "$$PATH_FILE"
	@$(BIN)/python -m trm.checks.setup & \
	  $(call $(if $(CUDA),uv,pip),$(VENV)) $(if $(CUDA),,--no-compile) $(TORCH_OPTIONS) -r envs/cpu/torch.txt \
	    $(call log,$(VENV)); \
	  installed=$$?; wait $$!; [ $$installed = 0 ] || $(call shown,$(VENV))
	@$(BIN)/python -m trm.checks.speed
	$(if $(CUDA),@echo $(CUDA) >$(VENV)/.cuda)
	@touch $@

$(TPU_VENV)/.ready: envs/tpu/requirements.lock
	@$(PYTHON) -c "$$PYTHON_CHECK"
	@echo "Setting up $(TPU_VENV) for the tests of the TPU backend (about 8 GB, two to four minutes; XLA=0 skips them)"
	@$(PYTHON) -m venv $(TPU_VENV)
	@$(call pip,$(TPU_VENV)) uv==0.13.9 $(call log,$(TPU_VENV)) || $(call shown,$(TPU_VENV))
	@$(call uv,$(TPU_VENV)) -r envs/tpu/requirements.lock $(call log,$(TPU_VENV)) || $(call shown,$(TPU_VENV))
	@$(TPU_VENV)/bin/python -c "$$PATH_FILE"
	@touch $@

envs: $(VENV)/.ready $(if $(filter 1,$(XLA)),$(TPU_VENV)/.ready)

report: $(VENV)/.ready
	@$(RUN) $(ARGS)

study: $(VENV)/.ready
	@$(RUN) --config experiments=study $(ARGS)

fetch: $(VENV)/.ready
	@$(BIN)/python -m trm data fetch --scale $(SCALE)

test: $(VENV)/.ready
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not full"

test-all: test test-full

# what `make test` leaves out; the tests of the TPU backend compile while the others wait for servers
test-full: envs
	@$(if $(filter 1,$(XLA)),,echo "Skipped: the tests of the TPU backend (torch_xla has wheels for Linux on x86-64 and Python up to 3.13 only, or XLA=0 was given)")
	@$(MAKE) --no-print-directory --jobs=2 test-services $(if $(filter 1,$(XLA)),test-xla PROCESSES=1)

# six processes: these tests wait for more than half of their time
test-services: $(VENV)/.ready
	$(BIN)/python -m pytest -n 6 --dist loadfile --no-loadscope-reorder -m full

PROCESSES ?= 2
test-xla: $(TPU_VENV)/.ready
	$(TPU_VENV)/bin/python -m pytest -n $(PROCESSES) --dist loadfile --no-loadscope-reorder tests/xla

# the lines that no test executes
coverage: $(VENV)/.ready
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --cov=trm --cov=snakemake_executor_plugin_tpu --cov-report=term-missing:skip-covered

# builds the container image, where buildah is installed, and runs a study in it
test-image: $(VENV)/.ready
	TRM_TEST_IMAGE=1 $(BIN)/python -m pytest -p no:xdist -rs tests/test_image.py

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint --configfile profiles/local/workflow.yaml
	$(BIN)/python docs/generated.py --check
	$(BIN)/python -m tests.language

# the parts of config/ and docs/ that are generated from the study, the schema and the kinds of figures
schema: $(VENV)/.ready
	@$(BIN)/python docs/generated.py

docs: $(VENV)/.ready
	$(BIN)/mkdocs build --strict --quiet --site-dir site
	@echo "site/index.html"

notebooks: $(VENV)/.ready
	@$(BIN)/python -c "import jupyterlab" 2>/dev/null || $(call pip,$(VENV)) jupyterlab==4.6.6
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) notebooks

shell: $(VENV)/.ready
	@. $(BIN)/activate && exec "$${SHELL:-sh}"

rehearsal: $(VENV)/.ready
	$(BIN)/python -m tests.rehearsal

bench: $(VENV)/.ready
	$(BIN)/python -m benchmarks.step --threads 1 --rounds 3 --cases 6x6-d32 6x6-d64 9x9-d64
	$(BIN)/python -m benchmarks.pipeline
	$(BIN)/python -m benchmarks.accuracy --cases 6x6

# after a change of envs/cpu/requirements.in; needs uv
lock:
	(echo "# Pinned with hashes for Python 3.11 to 3.14 on Linux and macOS by \`make lock\` from requirements.in."; \
	  uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	    envs/cpu/requirements.in) > envs/cpu/requirements.lock.new
	mv envs/cpu/requirements.lock.new envs/cpu/requirements.lock
	$(PYTHON) envs/conda.py envs/cpu
