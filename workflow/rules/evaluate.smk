# One evaluation of one run; further ways to measure a run are further files in its folder.


rule evaluate:
    input:
        run=of_wildcards(INPUTS.evaluate_run, "run", "evaluation"),
        dataset=of_wildcards(INPUTS.evaluate_dataset, "run", "evaluation"),
    output:
        evaluation=PLACE.file("results/runs/{run}/evaluation-{evaluation}.json"),
    log:
        f"{LOGS}/evaluate/{{run}}-{{evaluation}}.log",
    conda:
        "../../envs/cpu/environment.yaml"
    threads: PROJECT.study.scale.threads
    resources:
        tpu_hosts=1,
        runtime=of_wildcards(INPUTS.evaluate_minutes, "run", "evaluation"),
        mem_mb=of_wildcards(INPUTS.evaluate_memory_mb, "run", "evaluation"),
        gpu=PROJECT.settings.gpus,
    params:
        evaluation=of_wildcards(CATALOGUE.evaluation_json, "run", "evaluation"),
        options=INPUTS.evaluate_options,
    message:
        "Evaluation of {wildcards.run}"
    shell:
        "exec python -m trm evaluate --run $(dirname {input.run[0]:q}) --dataset $(dirname {input.dataset:q}) "
        "--evaluation {params.evaluation:q} --out {output.evaluation:q} "
        "--threads {threads} {params.options:q} --log {log:q}"
