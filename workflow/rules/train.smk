# One training run: its folder's name is the digest of all that its result depends on.


rule train:
    input:
        dataset=of_wildcards(INPUTS.train_dataset, "run"),
        # functions only where they can name a file: Snakemake calls them for each of thousands of runs
        preflight=(
            of_wildcards(lambda run: INPUTS.check_before(CATALOGUE.run_files(run)), "run")
            if CHECK.wanted
            else []
        ),
        initial=of_wildcards(INPUTS.train_initial, "run") if CATALOGUE.any_initial_weights else [],
    output:
        training=PLACE.file("results/runs/{run}/training.json"),
        history=PLACE.file("results/runs/{run}/history.csv"),
        weights=PLACE.file("results/runs/{run}/weights.safetensors"),
    log:
        f"{LOGS}/train/{{run}}.log",
    conda:
        "../../envs/cpu/environment.yaml"
    threads: of_wildcards(PLAN.threads, "run")
    resources:
        tpu_hosts=of_wildcards(PLAN.hosts, "run"),
        runtime=of_wildcards(lambda run: PLAN.minutes("train", run), "run"),
        mem_mb=of_wildcards(lambda run: PLAN.memory_mb("train", run), "run"),
        # for the TPU plugin: it stops a job that publishes no checkpoint for so many minutes, and starts it again
        stall=PLAN.stall(),
        gpu=of_wildcards(PLAN.gpus, "run"),
        nodes=of_wildcards(PLAN.nodes, "run"),
        # for the Slurm plugin: a process on each node, which the command starts
        mpi=of_wildcards(lambda run: "srun" if PLAN.nodes(run) > 1 else None, "run"),
        tasks=of_wildcards(lambda run: PLAN.nodes(run) if PLAN.nodes(run) > 1 else None, "run"),
        tasks_per_gpu=0,
    params:
        config=of_wildcards(CATALOGUE.run_json, "run"),
        launcher=untracked(PLAN.launcher, "run"),
        options=INPUTS.train_options,
        plan=untracked(PLAN.sentence, "run"),
    message:
        "{wildcards.run}: {params.plan}"
    # exec: a signal to the job reaches the training itself, which needs time for its checkpoint
    shell:
        "exec {params.launcher} python -m trm train --config {params.config:q} --dataset $(dirname {input.dataset:q}) "
        "--out $(dirname {output.training:q}) {params.options:q} --log {log:q}"
