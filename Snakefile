# The whole pipeline: data -> training -> evaluation -> tables -> fits -> figures -> report.
#   snakemake --profile profiles/local                 everything of `make report`
#   snakemake --profile profiles/local model_size      one experiment
#   snakemake --profile profiles/tpu -n                what would run, how long, at what cost (-p: every job)
import atexit
import gc
import os

from snakemake.utils import min_version
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

min_version("9.20")

from trm.errors import UserError
from trm.pipeline.controller import Controller
from trm.pipeline.estimates import Estimates
from trm.pipeline.inputs import Inputs, PreflightGate, of_wildcards, untracked
from trm.pipeline.places import may_repeat, shell_prefix
from trm.pipeline.project import open_project
from trm.provenance import commit_in_words

# Snakemake's graph is no garbage: collecting took a quarter of a dry run of 5,000 points, and another fifth at its end.
gc.set_threshold(200_000, 20, 100)
atexit.register(gc.freeze)

try:
    PROJECT = open_project(config, storage, workflow.output_settings.dryrun)
    PLAN = Estimates(PROJECT)
    if workflow.is_main_process:
        PROJECT.check_figures()
except UserError as error:
    raise WorkflowError(str(error)) from None

LOGS = PROJECT.settings.logs
CATALOGUE, SELECTION = PROJECT.catalogue, PROJECT.selection
PLACE = PROJECT.place
PLACE.repeats = lambda: may_repeat(workflow)
CHECK = PreflightGate(PROJECT.settings, PLACE, PLAN.pod_hosts)
INPUTS = Inputs(PROJECT, PLAN, CHECK)
CONTROLLER = Controller(PROJECT, config, workflow)
if "slurm" in ExecutorPluginRegistry().plugins:
    if workflow.is_main_process:
        from trm.pipeline.slurm_executor import use_executor

        use_executor(PROJECT)
    else:
        from trm.pipeline.slurm import keep_location

        keep_location()

if PLACE.prefix:
    # Hosts have no repository: a result names the version with which its job was started.
    os.environ.setdefault("TRM_COMMIT", commit_in_words())

    envvars:
        "TRM_COMMIT",


if PLACE.prefix and not PLACE.unread:
    try:
        from snakemake_executor_plugin_tpu.storage import use_listings
    except ImportError:
        pass  # the bucket works without it: each object is then asked for by itself
    else:
        use_listings(workflow)

shell.prefix(shell_prefix(PROJECT.settings))


# For `--sdm apptainer`: an image built from the Dockerfile (docs/cluster.md). `--sdm conda` uses envs/cpu.
if "container" in config:

    container: config["container"]


report: "workflow/report/workflow.rst"


wildcard_constraints:
    source=r"[A-Za-z0-9_.-]+-[0-9a-f]{8}",
    dataset=r"[A-Za-z0-9_.-]+-[0-9a-f]{8}",
    run=r"[A-Za-z0-9_.-]+-[0-9a-f]{8}",
    evaluation=r"[0-9a-f]{8}",
    table=r"[A-Za-z0-9_]+-[0-9a-f]{8}",
    fit=r"[A-Za-z0-9_]+-[0-9a-f]{8}",
    figure=r"[A-Za-z0-9_]+-[0-9a-f]{8}",
    stem=r"[A-Za-z0-9_]+",


localrules:
    all,
    table,
    fit,
    plot,
    publish,
    html_report,


rule all:
    default_target: True
    input:
        of_wildcards(INPUTS.everything),


include: "workflow/rules/preflight.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/fit.smk"
include: "workflow/rules/plot.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/targets.smk"


onsuccess:
    CONTROLLER.succeeded()


onerror:
    CONTROLLER.failed()
