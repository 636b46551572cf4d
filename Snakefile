# The whole pipeline: data -> training -> evaluation -> tables -> fits -> figures -> report.
#   snakemake --profile profiles/local                 everything of `make report`
#   snakemake --profile profiles/local model_size      one experiment
#   snakemake --profile profiles/tpu -n                what would run, why, how long, at what cost
import atexit
import gc

from snakemake.utils import min_version

min_version("9.20")

from trm.errors import UserError
from trm.pipeline import plan
from trm.pipeline.estimates import Estimates
from trm.pipeline.inputs import Inputs
from trm.pipeline.partial import write_partial_report
from trm.pipeline.places import Place, may_repeat, shell_prefix
from trm.pipeline.preflight import Preflight
from trm.pipeline.workflow import Workflow

# While Snakemake builds its graph nothing becomes garbage: looking for it took a quarter of a dry run of 5,000 points,
# and looking once more at the end of the process another fifth.
gc.set_threshold(200_000, 20, 100)
atexit.register(gc.freeze)

try:
    STUDY = Workflow(config)
    PLAN = Estimates(STUDY)
    STUDY.figures  # every figure is checked before anything runs
    plan.budget_of(STUDY)
    if workflow.is_main_process:
        STUDY.age_stale_files()
except UserError as error:
    raise WorkflowError(str(error)) from None

LOGS = STUDY.logs

# A dry run ends with what the experiments asked for cost, and what a budget buys.
if workflow.is_main_process and workflow.output_settings.dryrun:
    atexit.register(
        lambda: plan.announce(STUDY, workflow.dag_settings, [rule.name for rule in workflow.rules])
    )

PLACE = Place(config, storage, repeats=may_repeat(workflow))
CHECK = Preflight(config, PLACE, PLAN.pod_hosts)
if PLACE.prefix:
    try:
        from snakemake_executor_plugin_tpu.storage import use_listings
    except ImportError:
        pass  # the bucket works without it: each object is then asked for by itself
    else:
        use_listings(workflow)

INPUTS = Inputs(STUDY, PLAN, PLACE, CHECK)

shell.prefix(shell_prefix(config))


# Inert unless a software deployment method is asked for; it names the reference environment.
container: "docker://python:3.11-slim"


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
        "results/report.html",
        expand("results/plots/{stem}.pdf", stem=[figure.stem for figure in STUDY.shown_figures()]),


include: "workflow/rules/preflight.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/fit.smk"
include: "workflow/rules/plot.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/targets.smk"


onerror:
    write_partial_report(STUDY, config)
