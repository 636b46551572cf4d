# Figures are drawn under names by content, then put where people look for them.


rule plot:
    input:
        tables=of_wildcards(lambda figure: SELECTION.figure_by_name(figure).tables, "figure"),
        fits=of_wildcards(
            lambda figure: [fit.file for fit in SELECTION.figure_by_name(figure).fits], "figure"
        ),
    output:
        pdf="results/figures/{figure}.pdf",
        png="results/figures/{figure}.png",
        caption="results/figures/{figure}.json",
    log:
        f"{LOGS}/plot/{{figure}}.log",
    conda:
        "../../envs/cpu/environment.yaml"
    resources:
        runtime=PLAN.minutes("plot"),
        mem_mb=PLAN.memory_mb("plot"),
    params:
        spec=of_wildcards(lambda figure: SELECTION.figure_by_name(figure).json, "figure"),
    message:
        "Figure {wildcards.figure}"
    shell:
        "python -m trm plot --spec {params.spec:q} --table {input.tables:q} --fit {input.fits:q} --out {output.pdf:q} "
        "2>&1 | tee {log:q}"


rule publish:
    input:
        figure=of_wildcards(lambda stem: SELECTION.figure(stem).files, "stem"),
    output:
        pdf=report(
            "results/plots/{stem}.pdf",
            caption="../report/figure.rst",
            category=of_wildcards(SELECTION.category, "stem"),
        ),
        png="results/plots/{stem}.png",
        stamp="results/plots/{stem}.json",
    log:
        f"{LOGS}/publish/{{stem}}.log",
    conda:
        "../../envs/cpu/environment.yaml"
    resources:
        runtime=PLAN.minutes("publish"),
        mem_mb=PLAN.memory_mb("publish"),
    params:
        identity=of_wildcards(lambda stem: SELECTION.figure(stem).identity, "stem"),
        reading=untracked(lambda stem: SELECTION.figure(stem).spec.reading, "stem"),
    message:
        "Publish results/plots/{wildcards.stem}.pdf"
    shell:
        "python -m trm study publish --figure {input.figure[0]:q} --identity {params.identity} --out {output.pdf:q} "
        "> {log:q} 2>&1"
