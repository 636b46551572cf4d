"""Snakemake's own tests for executor plugins, on the emulated pod."""

import uuid

import pytest
import snakemake.common.tests
from snakemake_interface_common.plugin_registry.plugin import TaggedSettings
from snakemake_storage_plugin_gcs import StorageProviderSettings

from snakemake_executor_plugin_tpu import ExecutorSettings
from snakemake_executor_plugin_tpu.emulator.pod import BUCKET, NAME, PROJECT, ZONE
from snakemake_executor_plugin_tpu.storage import use_listings


class TestWorkflows(snakemake.common.tests.TestWorkflowsBase):
    __test__ = True
    test_simple_workflow = None  # is part of the other one, of a workflow with groups

    @pytest.fixture(autouse=True)
    def _pod(self, empty_pod, monkeypatch):
        self.pod = empty_pod
        for key, value in empty_pod.environment.items():
            monkeypatch.setenv(key, value)
        use_listings()  # the command line does it by reading the settings, before the workflow is loaded

    def get_executor(self):
        return "tpu"

    def get_executor_settings(self):
        where = {"project": PROJECT, "zone": ZONE, "name": NAME, "bucket": BUCKET, "python": self.pod.python}
        where["api_endpoint"] = f"127.0.0.1:{self.pod.api.port}"
        return ExecutorSettings(**where, accelerator_type="v4-8", create=True)

    def get_default_storage_provider(self):
        return "gcs"

    def get_default_storage_prefix(self):
        return f"gs://{BUCKET}/workflows-{uuid.uuid4().hex[:8]}"

    def get_default_storage_provider_settings(self):
        settings = TaggedSettings()
        settings.register_settings(StorageProviderSettings(project=PROJECT))
        return {"gcs": settings}

    def get_assume_shared_fs(self):
        return False
