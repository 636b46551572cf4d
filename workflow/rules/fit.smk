# Tables collect evaluations; fits read tables. Both are named by content, so what exists is current.


rule table:
    input:
        lambda wildcards: [study.file(path) for path in study.catalogue.table_inputs(wildcards.table)],
    output:
        table="results/tables/{table}.csv",
        sidecar="results/tables/{table}.csv.json",
        curves="results/tables/{table}.csv.curves.csv",
    log:
        f"{study.settings.logs}/table/{{table}}.log",
    conda:
        "../../envs/cpu/environment.yaml"
    resources:
        **study.resources("table"),
    params:
        options=lambda wildcards, output: study.options,
        root=lambda wildcards, output: study.file.root,
    message:
        "Table {wildcards.table}"
    shell:
        "python -m trm table --experiment {wildcards.table} {params.options} --root={params.root:q} "
        "--out {output.table:q} 2>&1 | tee {log:q}"


rule fit:
    input:
        tables=lambda wildcards: study.selection.fit(wildcards.fit).tables,
    output:
        "results/fits/{fit}.json",
    log:
        f"{study.settings.logs}/fit/{{fit}}.log",
    conda:
        "../../envs/cpu/environment.yaml"
    resources:
        **study.resources("fit"),
    params:
        spec=lambda wildcards: study.selection.fit(wildcards.fit).json,
    message:
        "Fit {wildcards.fit}"
    shell:
        "python -m trm fit --table {input.tables:q} --spec {params.spec:q} --out {output:q} 2>&1 | tee {log:q}"
