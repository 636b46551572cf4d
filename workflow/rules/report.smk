# The report: one self-contained page.


rule html_report:
    input:
        shown=lambda wildcards: study.report(),
    output:
        html=report("results/report.html", caption="../report/report.rst", category="Report"),
        spec="results/report.spec.json",
    log:
        f"{study.settings.logs}/report.log",
    conda:
        "../../envs/cpu/environment.yaml"
    resources:
        runtime=study.plan.minutes("html_report"),
        mem_mb=lambda wildcards, attempt: attempt * study.plan.memory_mb("html_report"),
    params:
        identity=lambda wildcards: study.project.report_identity,
        options=lambda wildcards, output: study.options,
    message:
        "results/report.html"
    shell:
        "(python -m trm study spec report --options={params.options:q} --out {output.spec:q} && "
        "python -m trm report --spec {output.spec:q} --out {output.html:q}) "
        "2>&1 | tee {log:q}"
