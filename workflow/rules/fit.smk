# Tables collect evaluations; fits read tables. Both are named by content, so what exists is current.


rule table:
    input:
        of_wildcards(INPUTS.table, "table"),
    output:
        table="results/tables/{table}.csv",
        sidecar="results/tables/{table}.csv.json",
        curves="results/tables/{table}.csv.curves.csv",
        spec="results/tables/{table}.spec.json",
    log:
        f"{LOGS}/table/{{table}}.log",
    conda:
        "../../envs/cpu/environment.yaml"
    resources:
        runtime=PLAN.minutes("table"),
        mem_mb=PLAN.memory_mb("table"),
    params:
        options=untracked(lambda: PROJECT.options),
        root=untracked(lambda: PLACE.root),
    message:
        "Table {wildcards.table}"
    shell:
        "(python -m trm study spec table {wildcards.table} --options={params.options:q} --root={params.root:q} "
        "--out {output.spec:q} && "
        "python -m trm table --experiment {output.spec:q} --out {output.table:q}) 2>&1 | tee {log:q}"


rule fit:
    input:
        tables=of_wildcards(lambda fit: SELECTION.fit(fit).tables, "fit"),
    output:
        "results/fits/{fit}.json",
    log:
        f"{LOGS}/fit/{{fit}}.log",
    conda:
        "../../envs/cpu/environment.yaml"
    resources:
        runtime=PLAN.minutes("fit"),
        mem_mb=PLAN.memory_mb("fit"),
    params:
        spec=of_wildcards(lambda fit: SELECTION.fit(fit).json, "fit"),
    message:
        "Fit {wildcards.fit}"
    shell:
        "python -m trm fit --table {input.tables:q} --spec {params.spec:q} --out {output:q} 2>&1 | tee {log:q}"
