"""An emulated TPU pod on one machine: the hosts are real OpenSSH servers in namespaces, fake-gcs-server is Google Cloud
Storage, and a gRPC server speaks the Cloud TPU API (v2) and boots and kills the hosts.

    from snakemake_executor_plugin_tpu.emulator import EmulatedPod, why_not

    with EmulatedPod(folder, accelerator_type="v4-64") as pod:
        pod.create()                       # or let the plugin do it, through the API
        subprocess.run([...], env={**os.environ, **pod.environment})
        pod.preempt()

From a shell:

    python -m snakemake_executor_plugin_tpu.emulator up --dir DIR
    . DIR/environment
    python -m snakemake_executor_plugin_tpu.emulator down --dir DIR
"""

from .pod import EmulatedPod, why_not

__all__ = ["EmulatedPod", "why_not"]
