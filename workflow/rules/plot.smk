# Figures: drawn under fixed names. The JSON file of each holds its identity, which the study compares with its own.


rule plot:
    input:
        tables=study.tables_of_figure,
        fits=lambda wildcards: [fit.file for fit in study.selection.figure(wildcards.stem).fits],
    output:
        pdf=report(
            "results/plots/{stem}.pdf",
            caption="../report/figure.rst",
            category=lambda wildcards: study.selection.category(wildcards.stem),
        ),
        png="results/plots/{stem}.png",
        stamp="results/plots/{stem}.json",
    log:
        f"{study.settings.logs}/plot/{{stem}}.log",
    conda:
        "../../envs/cpu/environment.yaml"
    resources:
        **study.resources("plot"),
    params:
        spec=lambda wildcards, output: study.selection.figure(wildcards.stem).json,
        identity=lambda wildcards, output: study.selection.figure(wildcards.stem).identity,
        reading=lambda wildcards, output: study.selection.figure(wildcards.stem).spec.reading,
    message:
        "Figure results/plots/{wildcards.stem}.pdf"
    shell:
        "python -m trm plot --spec {params.spec:q} --table {input.tables:q} --fit {input.fits:q} "
        "--identity {params.identity} --out {output.pdf:q} 2>&1 | tee {log:q}"
