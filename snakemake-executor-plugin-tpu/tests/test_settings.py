"""What is refused before anything costs money."""

import pytest
from snakemake_interface_common.exceptions import WorkflowError

from snakemake_executor_plugin_tpu.__main__ import main
from snakemake_executor_plugin_tpu.settings import ExecutorSettings


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"provisioning": "cheap"}, "tpu-provisioning is 'cheap': use spot or on-demand or reserved"),
        ({"bucket": "s3://b"}, "tpu-bucket is 's3://b': write gs://BUCKET or gs://BUCKET/FOLDER"),
        ({"grace": -1}, "tpu-grace is -1: it cannot be negative"),
        ({"slices": 0}, "tpu-slices is 0: a pod has at least one slice"),
        ({"end": "soon"}, "tpu-end is 'soon': use 2026-12-31"),
        ({"prices": "v4"}, "tpu-prices is 'v4': write FAMILY=USD"),
        ({"accelerator_type": "v9-8"}, "v9-8"),
    ],
)
def test_settings_that_are_refused(setting, sentence):
    with pytest.raises(WorkflowError, match=sentence):
        ExecutorSettings(**setting)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["ssh", "8"], "A v4-64 has 8 hosts, numbered from 0: no host 8."),
        (["ssh", "one"], "'one' is no host"),
        (["hold", "long"], "Say for how long the pod is kept"),
        (["stop"], "Name a job as `status` shows it"),
        (["status", "--slice", "1"], "There is 1 slice, numbered from 0: no slice 1."),
        (["fly"], "fly is no command: use one of up, status"),
        (["status", "--profile", "nowhere"], "There is no Snakemake profile at nowhere"),
    ],
)
def test_commands_that_are_refused(words, sentence, capsys):
    pod = ["--project", "p", "--zone", "z", "--name", "pod", "--bucket", "bucket"]
    assert main([*words, *pod, "--api-endpoint", "127.0.0.1:1"]) == 1
    assert sentence in capsys.readouterr().err
