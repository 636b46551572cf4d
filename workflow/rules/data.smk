# Puzzles: a pool of one source, and the data sets that are cut from it.


rule source:
    input:
        preflight=lambda wildcards: ancient(CHECK.before(*STUDY.source_outputs(wildcards.source))),
    output:
        manifest=PLACE.at("results/sources/{source}/manifest.json"),
        puzzles=PLACE.at("results/sources/{source}/puzzles.npz"),
    log:
        f"{LOGS}/source/{{source}}.log",
    resources:
        # a resource, not a parameter: another path to the same bytes is no reason to build again
        files=lambda wildcards: STUDY.source_files(wildcards.source),
    params:
        config=lambda wildcards: STUDY.source_json(wildcards.source),
    message:
        "Puzzles {wildcards.source}"
    shell:
        "python -m trm data source --config {params.config:q} --files={resources.files:q} "
        "--out $(dirname {output.manifest:q}) 2>&1 | tee {log:q}"


rule dataset:
    input:
        preflight=lambda wildcards: ancient(CHECK.before(*STUDY.dataset_outputs(wildcards.dataset))),
        source=lambda wildcards: ancient(
            PLACE.needed(
                STUDY.source_outputs(STUDY.source_of_dataset(wildcards.dataset))[0],
                STUDY.dataset_outputs(wildcards.dataset),
            )
        ),
        puzzles=lambda wildcards: ancient(
            PLACE.needed(
                STUDY.source_outputs(STUDY.source_of_dataset(wildcards.dataset))[1],
                STUDY.dataset_outputs(wildcards.dataset),
            )
        ),
    output:
        manifest=PLACE.at("results/datasets/{dataset}/manifest.json"),
        files=PLACE.all(STUDY.dataset_outputs("{dataset}")[1:]),
    log:
        f"{LOGS}/dataset/{{dataset}}.log",
    params:
        config=lambda wildcards: STUDY.dataset_json(wildcards.dataset),
    message:
        "Data set {wildcards.dataset}"
    shell:
        "python -m trm data build --config {params.config:q} --source $(dirname {input.source:q}) "
        "--out $(dirname {output.manifest:q}) 2>&1 | tee {log:q}"
