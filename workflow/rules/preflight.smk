# A pod is checked by all its hosts before anything else runs on it. Only jobs that have something to do wait for it, and
# they take its file as `ancient`: checking again (delete the file, or --forcerun preflight) makes nothing stale.

if CHECK.wanted:

    rule preflight:
        output:
            rows=CHECK.output,
        log:
            f"{LOGS}/preflight.log",
        conda:
            "../../envs/cpu/environment.yaml"
        resources:
            tpu_hosts=CHECK.hosts,
            runtime=PLAN.minutes("preflight"),
            mem_mb=PLAN.memory_mb("preflight"),
        params:
            launcher="tpurun" if CHECK.hosts > 1 else "",
            options=CHECK.options,
        message:
            "Preflight of {resources.tpu_hosts} hosts"
        shell:
            "{params.launcher} python -m trm preflight {params.options:q} --out {output.rows:q} 2>&1 | tee {log:q}"
