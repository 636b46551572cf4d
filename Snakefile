# The whole pipeline: data -> training -> evaluation -> tables -> fits -> figures -> report.
#   snakemake --profile profiles/local                 everything of `make report`
#   snakemake --profile profiles/local model_size      one experiment
#   snakemake --profile profiles/tpu -n                what would run, how long, at what cost (-p: every job)
from snakemake.utils import min_version

min_version("9.20")

from trm.errors import UserError
from trm.launch.controller import refuse
from trm.launch.jobs import open_jobs

try:
    study, controller = open_jobs(config, storage, workflow)
except UserError as error:
    refuse(error)

if study.file.prefix:

    # Hosts have no repository: a result names the version with which its job was started.
    envvars:
        "TRM_COMMIT",


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
    stem=r"[A-Za-z0-9_]+",


localrules:
    all,
    table,
    fit,
    plot,
    html_report,


rule all:
    default_target: True
    input:
        study.everything,


include: "workflow/rules/preflight.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/fit.smk"
include: "workflow/rules/plot.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/targets.smk"


onsuccess:
    controller.succeeded()


onerror:
    controller.failed()
