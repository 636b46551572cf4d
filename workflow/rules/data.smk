# Puzzles: a pool of one source, and the data sets that are cut from it.


rule source:
    input:
        preflight=lambda wildcards: study.after_preflight(study.catalogue.source_files(wildcards.source)),
    output:
        manifest=study.file("results/sources/{source}/manifest.json"),
        puzzles=study.file("results/sources/{source}/puzzles.npz"),
    log:
        f"{study.settings.logs}/source/{{source}}.log",
    conda:
        "../../envs/cpu/environment.yaml"
    resources:
        runtime=lambda wildcards: said(study.plan.minutes, "source", wildcards.source),
        mem_mb=lambda wildcards, attempt: attempt * study.plan.memory_mb("source", wildcards.source),
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
        preflight=lambda wildcards: study.after_preflight(study.catalogue.dataset_files(wildcards.dataset)),
        source=lambda wildcards: study.source_file(wildcards.dataset, "manifest.json"),
        puzzles=lambda wildcards: study.source_file(wildcards.dataset, "puzzles.npz"),
    output:
        manifest=study.file("results/datasets/{dataset}/manifest.json"),
        files=[study.file(path) for path in study.catalogue.dataset_files("{dataset}")[1:]],
    log:
        f"{study.settings.logs}/dataset/{{dataset}}.log",
    conda:
        "../../envs/cpu/environment.yaml"
    resources:
        runtime=lambda wildcards: said(study.plan.minutes, "dataset", wildcards.dataset),
        mem_mb=lambda wildcards, attempt: attempt * study.plan.memory_mb("dataset", wildcards.dataset),
    params:
        config=lambda wildcards: study.catalogue.dataset_json(wildcards.dataset),
    message:
        "Data set {wildcards.dataset}"
    shell:
        "python -m trm data build --config {params.config:q} --source $(dirname {input.source:q}) "
        "--out $(dirname {output.manifest:q}) 2>&1 | tee {log:q}"
