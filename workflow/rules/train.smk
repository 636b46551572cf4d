# One training run: its folder's name is the digest of all that its result depends on.


rule train:
    input:
        dataset=lambda wildcards: study.run_dataset(wildcards.run, *study.catalogue.run_files(wildcards.run)),
        # functions only where they can name a file: Snakemake calls them for each of thousands of runs
        preflight=(
            (lambda wildcards: study.after_preflight(study.catalogue.run_files(wildcards.run)))
            if study.preflight
            else []
        ),
        initial=(
            (lambda wildcards: said(study.initial_weights, wildcards.run))
            if study.catalogue.any_initial_weights
            else []
        ),
    output:
        training=study.file("results/runs/{run}/training.json"),
        history=study.file("results/runs/{run}/history.csv"),
        weights=study.file("results/runs/{run}/weights.safetensors"),
    log:
        f"{study.settings.logs}/train/{{run}}.log",
    conda:
        "../../envs/cpu/environment.yaml"
    threads: lambda wildcards: study.plan.threads(wildcards.run)
    resources:
        tpu_hosts=lambda wildcards: study.plan.hosts(wildcards.run),
        runtime=lambda wildcards: said(study.plan.minutes, "train", wildcards.run),
        mem_mb=lambda wildcards, attempt: attempt * study.plan.memory_mb("train", wildcards.run),
        # for the TPU plugin: it stops a job that publishes no checkpoint for so many minutes, and starts it again
        stall=lambda wildcards: study.plan.stall(wildcards.run),
        gpu=lambda wildcards: said(study.plan.gpus, wildcards.run),
        nodes=lambda wildcards: study.plan.nodes(wildcards.run),
        # for the Slurm plugin: a process on each node, which the command starts
        mpi=lambda wildcards: "srun" if study.plan.nodes(wildcards.run) > 1 else None,
        tasks=lambda wildcards: n if (n := study.plan.nodes(wildcards.run)) > 1 else None,
        tasks_per_gpu=0,
    params:
        config=lambda wildcards: study.catalogue.run_json(wildcards.run),
        launcher=lambda wildcards, output: study.plan.launcher(wildcards.run),
        options=study.with_time_limit(lambda wildcards: study.train_options(wildcards.run)),
        plan=lambda wildcards, output: study.plan.sentence(wildcards.run),
    message:
        "{wildcards.run}: {params.plan}"
    # exec: a signal to the job reaches the training itself, which needs time for its checkpoint
    shell:
        "exec {params.launcher} python -m trm train --config {params.config:q} --dataset $(dirname {input.dataset:q}) "
        "--out $(dirname {output.training:q}) {params.options:q} --log {log:q}"
