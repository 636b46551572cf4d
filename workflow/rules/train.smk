# One training run: its folder's name is the digest of all that its result depends on.


rule train:
    input:
        # ancient: the name says what is in it, so a data set that was restored or copied trains nothing again
        dataset=lambda wildcards: ancient(
            PLACE.needed(
                STUDY.dataset_manifest(wildcards.run), STUDY.run_outputs(wildcards.run), retrieve=False
            )
        ),
        # functions only where they can say something: Snakemake calls them for each of thousands of runs
        preflight=(
            (lambda wildcards: ancient(CHECK.before(*STUDY.run_outputs(wildcards.run))))
            if CHECK.wanted
            else []
        ),
        initial=(
            (
                lambda wildcards: [
                    ancient(file)
                    for path in STUDY.initial_weights(wildcards.run)
                    for file in PLACE.needed(path, STUDY.run_outputs(wildcards.run))
                ]
            )
            if STUDY.any_initial_weights
            else []
        ),
    output:
        training=PLACE.at("results/runs/{run}/training.json"),
        history=PLACE.at("results/runs/{run}/history.csv"),
        weights=PLACE.at("results/runs/{run}/weights.safetensors"),
    log:
        f"{LOGS}/train/{{run}}.log",
    threads: PLAN.threads
    resources:
        tpu_hosts=PLAN.hosts,
        mpi=PLAN.launcher,
        runtime=PLAN.minutes,
        mem_mb=PLAN.memory_mb,
        plan=PLAN.sentence,
        log_every=PLAN.log_every,
        evaluations=PLAN.evaluations,
    params:
        config=lambda wildcards: STUDY.run_json(wildcards.run),
    message:
        "{wildcards.run}: {resources.plan}"
    shell:
        "{resources.mpi} python -m trm train --config {params.config:q} --dataset $(dirname {input.dataset:q}) "
        '--out $(dirname {output.training:q}) --checkpoints "$TRM_CHECKPOINTS"/{wildcards.run} '
        '--threads "$TRM_THREADS" --runtime "$TRM_RUNTIME" {resources.log_every} {resources.evaluations} '
        "2>&1 | tee {log:q}"
