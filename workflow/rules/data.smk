# Puzzles: a pool of one source, and the data sets that are cut from it.


rule source:
    input:
        preflight=of_wildcards(lambda source: INPUTS.check_before(CATALOGUE.source_files(source)), "source"),
    output:
        manifest=PLACE.file("results/sources/{source}/manifest.json"),
        puzzles=PLACE.file("results/sources/{source}/puzzles.npz"),
    log:
        f"{LOGS}/source/{{source}}.log",
    conda:
        "../../envs/cpu/environment.yaml"
    resources:
        runtime=of_wildcards(lambda source: PLAN.minutes("source", source), "source"),
        mem_mb=of_wildcards(lambda source: PLAN.memory_mb("source", source), "source"),
    params:
        config=of_wildcards(CATALOGUE.source_json, "source"),
        # another path to the same bytes makes no other pool
        files=untracked(CATALOGUE.source_inputs, "source"),
    message:
        "Puzzles {wildcards.source}"
    shell:
        "python -m trm data source --config {params.config:q} --files={params.files:q} "
        "--out $(dirname {output.manifest:q}) 2>&1 | tee {log:q}"


rule dataset:
    input:
        preflight=of_wildcards(
            lambda dataset: INPUTS.check_before(CATALOGUE.dataset_files(dataset)), "dataset"
        ),
        source=of_wildcards(lambda dataset: INPUTS.source_file(dataset, 0), "dataset"),
        puzzles=of_wildcards(lambda dataset: INPUTS.source_file(dataset, 1), "dataset"),
    output:
        manifest=PLACE.file("results/datasets/{dataset}/manifest.json"),
        files=PLACE.files(CATALOGUE.dataset_files("{dataset}")[1:]),
    log:
        f"{LOGS}/dataset/{{dataset}}.log",
    conda:
        "../../envs/cpu/environment.yaml"
    resources:
        runtime=of_wildcards(lambda dataset: PLAN.minutes("dataset", dataset), "dataset"),
        mem_mb=of_wildcards(lambda dataset: PLAN.memory_mb("dataset", dataset), "dataset"),
    params:
        config=of_wildcards(CATALOGUE.dataset_json, "dataset"),
    message:
        "Data set {wildcards.dataset}"
    shell:
        "python -m trm data build --config {params.config:q} --source $(dirname {input.source:q}) "
        "--out $(dirname {output.manifest:q}) 2>&1 | tee {log:q}"
