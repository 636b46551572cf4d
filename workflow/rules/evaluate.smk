# One evaluation of one run; further ways to measure a run are further files in its folder.


rule evaluate:
    input:
        training=PLACE.at("results/runs/{run}/training.json"),
        weights=PLACE.at("results/runs/{run}/weights.safetensors"),
        dataset=lambda wildcards: ancient(
            PLACE.needed(
                STUDY.dataset_manifest(wildcards.run),
                [f"results/runs/{wildcards.run}/evaluation-{wildcards.evaluation}.json"],
                retrieve=False,
            )
        ),
    output:
        evaluation=PLACE.at("results/runs/{run}/evaluation-{evaluation}.json"),
    log:
        f"{LOGS}/evaluate/{{run}}-{{evaluation}}.log",
    threads: STUDY.study.scale.threads
    resources:
        tpu_hosts=1,
    params:
        evaluation=lambda wildcards: STUDY.evaluation_json(wildcards.run, wildcards.evaluation),
    message:
        "Evaluation of {wildcards.run}"
    shell:
        "python -m trm evaluate --run $(dirname {input.training:q}) --dataset $(dirname {input.dataset:q}) "
        '--ahead "$TRM_CHECKPOINTS"/{wildcards.run} '
        "--evaluation {params.evaluation:q} --out {output.evaluation:q} --threads {threads} 2>&1 | tee {log:q}"
