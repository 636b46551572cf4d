# Puzzles: a pool of one source, and the data sets that are cut from it.


rule source:
    input:
        preflight=study.preflight_of("source"),
    output:
        manifest=study.file("results/sources/{source}/manifest.json"),
        puzzles=study.file("results/sources/{source}/puzzles.npz"),
    log:
        f"{study.settings.logs}/source/{{source}}.log",
    conda:
        "../../envs/cpu/environment.yaml"
    resources:
        **study.resources("source"),
    params:
        config=lambda wildcards: study.catalogue.source_json(wildcards.source),
        # another path to the same bytes makes no other pool
        files=lambda wildcards, output: study.catalogue.source_inputs(wildcards.source),
    message:
        "Puzzles {wildcards.source}"
    shell:
        "python -m trm data source --config {params.config:q} --files={params.files:q} "
        "--out $(dirname {output.manifest:q}) 2>&1 | tee {log:q}"


rule dataset:
    input:
        preflight=study.preflight_of("dataset"),
        source=study.pool_manifest,
        puzzles=study.pool_puzzles,
    output:
        manifest=study.file("results/datasets/{dataset}/manifest.json"),
        files=[study.file(path) for path in study.catalogue.dataset_files("{dataset}")[1:]],
    log:
        f"{study.settings.logs}/dataset/{{dataset}}.log",
    conda:
        "../../envs/cpu/environment.yaml"
    resources:
        **study.resources("dataset"),
    params:
        config=lambda wildcards: study.catalogue.dataset_json(wildcards.dataset),
    message:
        "Data set {wildcards.dataset}"
    shell:
        "python -m trm data build --config {params.config:q} --source $(dirname {input.source:q}) "
        "--out $(dirname {output.manifest:q}) 2>&1 | tee {log:q}"
