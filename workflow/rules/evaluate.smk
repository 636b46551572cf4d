# One evaluation of one run; further ways to measure a run are further files in its folder.


rule evaluate:
    input:
        run=study.weights_of_run,
        dataset=study.dataset_of_evaluation,
    output:
        evaluation=study.file("results/runs/{run}/evaluation-{evaluation}.json"),
    log:
        f"{study.settings.logs}/evaluate/{{run}}-{{evaluation}}.log",
    conda:
        "../../envs/cpu/environment.yaml"
    threads: study.scale.threads
    resources:
        **study.resources("evaluate"),
    params:
        evaluation=study.config_of_evaluation,
        options=study.evaluate_options,
    message:
        "Evaluation of {wildcards.run}"
    shell:
        "exec python -m trm evaluate --run $(dirname {input.run[0]:q}) --dataset $(dirname {input.dataset:q}) "
        "--evaluation {params.evaluation:q} --out {output.evaluation:q} "
        "--threads {threads} {params.options:q} --log {log:q}"
