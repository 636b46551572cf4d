# Figures are drawn under names by content, then put where people look for them.


rule plot:
    input:
        tables=lambda wildcards: study.selection.figure_by_name(wildcards.figure).tables,
        fits=lambda wildcards: [fit.file for fit in study.selection.figure_by_name(wildcards.figure).fits],
    output:
        pdf="results/figures/{figure}.pdf",
        png="results/figures/{figure}.png",
        caption="results/figures/{figure}.json",
    log:
        f"{study.settings.logs}/plot/{{figure}}.log",
    conda:
        "../../envs/cpu/environment.yaml"
    resources:
        runtime=study.plan.minutes("plot"),
        mem_mb=lambda wildcards, attempt: attempt * study.plan.memory_mb("plot"),
    params:
        spec=lambda wildcards: study.selection.figure_by_name(wildcards.figure).json,
    message:
        "Figure {wildcards.figure}"
    shell:
        "python -m trm plot --spec {params.spec:q} --table {input.tables:q} --fit {input.fits:q} --out {output.pdf:q} "
        "2>&1 | tee {log:q}"


rule publish:
    input:
        figure=lambda wildcards: study.selection.figure(wildcards.stem).files,
    output:
        pdf=report(
            "results/plots/{stem}.pdf",
            caption="../report/figure.rst",
            category=lambda wildcards: study.selection.category(wildcards.stem),
        ),
        png="results/plots/{stem}.png",
        stamp="results/plots/{stem}.json",
    log:
        f"{study.settings.logs}/publish/{{stem}}.log",
    conda:
        "../../envs/cpu/environment.yaml"
    resources:
        runtime=study.plan.minutes("publish"),
        mem_mb=lambda wildcards, attempt: attempt * study.plan.memory_mb("publish"),
    params:
        identity=lambda wildcards: study.selection.figure(wildcards.stem).identity,
        reading=lambda wildcards, output: study.selection.figure(wildcards.stem).spec.reading,
    message:
        "Publish results/plots/{wildcards.stem}.pdf"
    shell:
        "python -m trm study publish --figure {input.figure[0]:q} --identity {params.identity} --out {output.pdf:q} "
        "> {log:q} 2>&1"
