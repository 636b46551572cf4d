# One training run: its folder's name is the digest of all that its result depends on.


rule train:
    input:
        dataset=study.dataset_of_run,
        preflight=study.preflight_of("train"),
        initial=study.initial_weights,
    output:
        training=study.file("results/runs/{run}/training.json"),
        history=study.file("results/runs/{run}/history.csv"),
        weights=study.file("results/runs/{run}/weights.safetensors"),
    log:
        f"{study.settings.logs}/train/{{run}}.log",
    conda:
        "../../envs/cpu/environment.yaml"
    threads: study.threads_of_run
    resources:
        **study.resources("train"),
    params:
        config=study.config_of_run,
        launcher=study.launcher_of_run,
        options=study.train_options,
        plan=study.plan_of_run,
    message:
        "{wildcards.run}: {params.plan}"
    # exec: a signal to the job reaches the training itself, which needs time for its checkpoint
    shell:
        "exec {params.launcher} python -m trm train --config {params.config:q} --dataset $(dirname {input.dataset:q}) "
        "--out $(dirname {output.training:q}) {params.options:q} --log {log:q}"
