# A pod is checked by all its hosts before anything else runs on it. Only jobs that have something to do wait for it, and
# they take its file as `ancient`: checking again (delete the file, or --forcerun preflight) makes nothing stale.

if study.preflight:

    rule preflight:
        output:
            rows=study.file(study.preflight),
        log:
            f"{study.settings.logs}/preflight.log",
        conda:
            "../../envs/cpu/environment.yaml"
        resources:
            **study.resources("preflight"),
        params:
            launcher="tpurun" if study.plan.pod_hosts > 1 else "",
            options=["--profile", study.settings.preflight]
            + (["--bucket", study.file.prefix] if study.file.prefix else []),
        message:
            "Preflight of {resources.tpu_hosts} hosts"
        shell:
            "{params.launcher} python -m trm preflight {params.options:q} --out {output.rows:q} 2>&1 | tee {log:q}"
