# The report: one self-contained page.


rule html_report:
    input:
        shown=study.shown_in_report,
    output:
        html=report("results/report.html", caption="../report/report.rst", category="Report"),
        stamp="results/report.json",
    log:
        f"{study.settings.logs}/report.log",
    conda:
        "../../envs/cpu/environment.yaml"
    resources:
        **study.resources("html_report"),
    params:
        options=lambda wildcards, output: study.options,
    message:
        "results/report.html"
    shell:
        "python -m trm report {params.options} --out {output.html:q} 2>&1 | tee {log:q}"
