"""An emulated TPU pod on one machine, without root: each host is a group of processes with its own folder, boots and
metadata server, fake-gcs-server is Google Cloud Storage, and a gRPC server speaks the Cloud TPU API (v2) and boots and
kills the hosts.

    from snakemake_executor_plugin_tpu.emulator import EmulatedPod, why_not

    with EmulatedPod(folder, accelerator_type="v4-64") as pod:
        subprocess.run(["snakemake", ...], env={**os.environ, **pod.environment})  # the plugin creates the pod
        pod.preempt()

From a shell:

    python -m snakemake_executor_plugin_tpu.emulator up --dir DIR
    . DIR/environment
    python -m snakemake_executor_plugin_tpu.emulator down --dir DIR
"""

from .pod import EmulatedPod, why_not

__all__ = ["EmulatedPod", "why_not"]
