# One evaluation of one run; further ways to measure a run are further files in its folder.


rule evaluate:
    input:
        run=lambda wildcards: study.trained(wildcards.run),
        dataset=lambda wildcards: study.run_dataset(
            wildcards.run, f"results/runs/{wildcards.run}/evaluation-{wildcards.evaluation}.json"
        ),
    output:
        evaluation=study.file("results/runs/{run}/evaluation-{evaluation}.json"),
    log:
        f"{study.settings.logs}/evaluate/{{run}}-{{evaluation}}.log",
    conda:
        "../../envs/cpu/environment.yaml"
    threads: study.scale.threads
    resources:
        tpu_hosts=1,
        runtime=lambda wildcards: study.plan.minutes(
            "evaluate", "{run}/evaluation-{evaluation}.json".format(**wildcards)
        ),
        mem_mb=lambda wildcards, attempt: attempt * study.plan.memory_mb("evaluate", wildcards.run),
        gpu=study.settings.gpus,
    params:
        evaluation=lambda wildcards: study.catalogue.evaluation_json(wildcards.run, wildcards.evaluation),
        options=study.with_time_limit(
            lambda wildcards: [
                "--parts",
                f"{study.file.checkpoints}/{wildcards.run}/evaluation-{wildcards.evaluation}",
            ]
        ),
    message:
        "Evaluation of {wildcards.run}"
    shell:
        "exec python -m trm evaluate --run $(dirname {input.run[0]:q}) --dataset $(dirname {input.dataset:q}) "
        "--evaluation {params.evaluation:q} --out {output.evaluation:q} "
        "--threads {threads} {params.options:q} --log {log:q}"
