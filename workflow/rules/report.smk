# The report: one self-contained page.


rule html_report:
    input:
        shown=of_wildcards(INPUTS.report),
    output:
        html=report("results/report.html", caption="../report/report.rst", category="Report"),
        spec="results/report.spec.json",
    log:
        f"{LOGS}/report.log",
    conda:
        "../../envs/cpu/environment.yaml"
    resources:
        runtime=PLAN.minutes("html_report"),
        mem_mb=PLAN.memory_mb("html_report"),
    params:
        identity=of_wildcards(lambda: PROJECT.report_identity),
        options=untracked(lambda: PROJECT.options),
    message:
        "results/report.html"
    shell:
        "(python -m trm study spec report --options={params.options:q} --out {output.spec:q} && "
        "python -m trm report --spec {output.spec:q} --out {output.html:q} --pdf results/report.pdf) "
        "2>&1 | tee {log:q}"
