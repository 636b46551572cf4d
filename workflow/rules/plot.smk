# Figures are drawn under names by content, then put where people look for them.


rule plot:
    input:
        tables=lambda wildcards: STUDY.figure_tables(wildcards.figure),
        fits=lambda wildcards: STUDY.figure_fits(wildcards.figure),
    output:
        pdf="results/figures/{figure}.pdf",
        png="results/figures/{figure}.png",
        caption="results/figures/{figure}.json",
    log:
        f"{LOGS}/plot/{{figure}}.log",
    params:
        spec=lambda wildcards: STUDY.figure_json(wildcards.figure),
    message:
        "Figure {wildcards.figure}"
    shell:
        "python -m trm plot --spec {params.spec:q} --table {input.tables:q} --fit {input.fits:q} --out {output.pdf:q} "
        "2>&1 | tee {log:q}"


rule publish:
    input:
        pdf=lambda wildcards: f"results/figures/{STUDY.figure(wildcards.stem).name}.pdf",
        png=lambda wildcards: f"results/figures/{STUDY.figure(wildcards.stem).name}.png",
        caption=lambda wildcards: f"results/figures/{STUDY.figure(wildcards.stem).name}.json",
        stale=lambda wildcards: STUDY.reason_to_publish(wildcards.stem),
    output:
        pdf=report(
            "results/plots/{stem}.pdf",
            caption="../report/figure.rst",
            category=lambda wildcards: STUDY.category(wildcards.stem),
        ),
        png="results/plots/{stem}.png",
        stamp="results/plots/{stem}.json",
    log:
        f"{LOGS}/publish/{{stem}}.log",
    params:
        identity=lambda wildcards: STUDY.figure(wildcards.stem).identity,
        kind=lambda wildcards: STUDY.figure(wildcards.stem).spec.kind,
    message:
        "results/plots/{wildcards.stem}.pdf"
    shell:
        "python -m trm study publish --figure {input.pdf:q} --identity {params.identity} --out {output.pdf:q} "
        "> {log:q} 2>&1"
