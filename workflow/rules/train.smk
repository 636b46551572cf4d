# One training run: its folder's name is the digest of all that its result depends on.


rule train:
    input:
        dataset=by(INPUTS.train_dataset, "run"),
        # functions only where they can name a file: Snakemake calls them for each of thousands of runs
        preflight=by(INPUTS.train_preflight, "run") if CHECK.wanted else [],
        initial=by(INPUTS.train_initial, "run") if CATALOGUE.any_initial_weights else [],
    output:
        training=PLACE.at("results/runs/{run}/training.json"),
        history=PLACE.at("results/runs/{run}/history.csv"),
        weights=PLACE.at("results/runs/{run}/weights.safetensors"),
    log:
        f"{LOGS}/train/{{run}}.log",
    benchmark:
        PLACE.at("results/benchmarks/train/{run}.tsv")
    conda:
        "../../envs/cpu/environment.yaml"
    threads: by(PLAN.threads, "run")
    resources:
        tpu_hosts=by(PLAN.hosts, "run"),
        runtime=by(PLAN.minutes, "run"),
        mem_mb=by(PLAN.memory_mb, "run"),
        gpu=by(PLAN.gpus, "run"),
        nodes=by(PLAN.nodes, "run"),
        # for the Slurm plugin: a process on each node, which the command starts
        mpi=by(PLAN.starter, "run"),
        tasks=by(PLAN.several_nodes, "run"),
        tasks_per_gpu=0,
    params:
        config=by(CATALOGUE.run_json, "run"),
        launcher=derived(PLAN.launcher, "run"),
        options=INPUTS.train_options,
        plan=derived(PLAN.sentence, "run"),
    message:
        "{wildcards.run}: {params.plan}"
    # exec: a signal to the job reaches the training itself, which needs time for its checkpoint
    shell:
        "exec {params.launcher} python -m trm train --config {params.config:q} --dataset $(dirname {input.dataset:q}) "
        "--out $(dirname {output.training:q}) {params.options:q} --log {log:q}"
