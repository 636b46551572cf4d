# The report: one self-contained page.


rule html_report:
    input:
        shown=of_wildcards(INPUTS.report),
        stale=of_wildcards(PUBLISHED.stale_report),
    output:
        html=report("results/report.html", caption="../report/report.rst", category="Report"),
        spec="results/report.spec.json",
        stamp="results/report.json",
    log:
        f"{LOGS}/report.log",
    conda:
        "../../envs/cpu/environment.yaml"
    params:
        identity=of_wildcards(lambda: PUBLISHED.report_identity),
        options=untracked(lambda: PROJECT.options),
    message:
        "results/report.html"
    shell:
        "(python -m trm study spec report --options={params.options:q} --out {output.spec:q} && "
        "python -m trm report --spec {output.spec:q} --out {output.html:q} --pdf results/report.pdf && "
        'echo \'{{"identity": "{params.identity}"}}\' > {output.stamp:q}) 2>&1 | tee {log:q}'
