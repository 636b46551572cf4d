"""docs/cloud.md and docs/pod-operations.md, walked as a newcomer walks them, against an emulated slice.

Every block of commands runs, in order.

What is not there is replaced: the chips (jobs compute on the hosts' CPUs, with this machine's environment), the size (a
v4-16 is the v4-64, the study is that of the rehearsal) and gcloud (see gcloud.py). Nobody may do anything before the
page's own commands have granted it.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from snakemake_executor_plugin_tpu.emulator import EmulatedPod, why_not
from tests.pipeline.conftest import ROOT
from tests.rehearsal import checkout, share_kernel

PAGE = "\n".join((ROOT / "docs" / page).read_text() for page in ("cloud.md", "pod-operations.md"))
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
CHECK = "$TPU_PYTHON -m trm preflight --profile local"
OURS = ("PROJECT", "ZONE", "NAME", "BUCKET")


def study(folder: Path) -> Path:
    """Write the study: the rehearsal's, cut short, as the scale `tpu`, with the figure that the page asks for."""
    document = yaml.safe_load((ROOT / "config/rehearsal.yaml").read_text())
    del document["extends"]
    document["scales"] = {"tpu": document["scales"]["rehearsal"] | {"seeds": [0]}}
    document["base"]["training"]["steps"] = 60
    document["base"]["data"]["test_puzzles"] = 100
    # of the panels of the figure `scaling_laws` this study has none
    figures = [{"kind": "curves", "name": "scaling_laws"}]
    document["experiments"] = {"data_size": {"question": "How many puzzles?", "figures": figures}}
    path = folder / "experiments.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def without_chips(folder: Path) -> None:
    """Make the shipped profile fit what is emulated."""
    config = folder / "profiles" / "tpu" / "config.yaml"
    lines = [line for line in config.read_text().splitlines() if not line.startswith("tpu-requirements:")]
    text = "\n".join(lines).replace("v4-64", "v4-16").replace(" envs/tpu\n", "\n")
    config.write_text(text.replace("python -m trm preflight --profile tpu\n", f"{CHECK}\n"))
    workflow = folder / "profiles" / "tpu" / "workflow.yaml"
    text = (
        workflow.read_text()
        .replace("backend: xla", "backend: cpu")
        .replace("preflight: tpu", "preflight: local")
    )
    workflow.write_text(re.sub(r"chips_per_host:.*\n", "", text) + "pod_hosts: 2\n")


class Walk:
    """A shell whose variables last from block to block."""

    def __init__(self, folder: Path, pod: EmulatedPod, home: Path):
        self.folder, self.pod, self.home = folder, pod, home
        self.state, self.variables = home / "gcloud.json", home / "variables"
        programs = home / "programs"
        programs.mkdir()
        self.variables.touch()
        (programs / "gcloud").write_text(
            f'#!/bin/sh\nexec "{sys.executable}" "{ROOT}/tests/pipeline/gcloud.py" "$@"\n'
        )
        (programs / "gcloud").chmod(0o755)
        known = {f"SNAKEMAKE_TPU_{name}" for name in OURS} | {
            "GOOGLE_CLOUD_PROJECT",
            "SNAKEMAKE_STORAGE_GCS_PROJECT",
        }
        self.environment = {
            **{key: value for key, value in os.environ.items() if key not in known},
            **{key: value for key, value in pod.environment.items() if key not in known},
            "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home / "cache"),
            "GCLOUD_STATE": str(self.state),
            "PYTHONPATH": str(ROOT),
        }

    def run(self, block: str) -> str:
        """Run a block of the page and return what it said; then let the roles that it granted hold."""
        script = f"set -euo pipefail; . {self.variables}\n{block}\nexport -p > {self.variables}\n"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=1200,
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, f"{block}\n{said[-5000:]}"
        self._grant()
        return said

    def _grant(self) -> None:
        state = json.loads(self.state.read_text())
        roles = {tuple(role) for role in state["roles"]}
        kinds = [
            {role for where, who, role in roles if where == "bucket_role" and who.startswith(kind)}
            for kind in ("user:", "serviceAccount:")
        ]
        self.pod.gcs.proxy.roles = set.intersection(*kinds)
        mine = {role for where, who, role in roles if where != "bucket_role" and who.startswith("user:")}
        self.pod.api.roles = mine
        hosts = [
            role
            for where, who, role in roles
            if where == "project_role" and who.startswith("serviceAccount:")
        ]
        held = {permission for role in hosts for permission in state.get("custom", {}).get(role, ())}
        self.pod.google.may_delete = "tpu.nodes.delete" in held
        for name in state["buckets"]:
            if name not in {bucket.name for bucket in self.pod.client().list_buckets()}:
                self.pod.gcs.create_bucket(name)


@pytest.mark.full
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "")
def test_every_block_of_the_page_works(tmp_path):
    folder = checkout(tmp_path / "trm-scaling", study(tmp_path))
    (folder / "config" / "cloud.yaml").unlink(missing_ok=True)
    without_chips(folder)
    home = tmp_path / "home"
    home.mkdir()
    said = []
    with EmulatedPod(tmp_path / "pod", "v4-16") as pod:
        share_kernel(pod, tmp_path)
        pod.gcs.proxy.roles = pod.api.roles = set()
        walk = Walk(folder, pod, home)
        for block in BLOCKS:
            said.append(
                walk.run(
                    block.replace("-n baseline", "-n data_size").replace("tpu baseline", "tpu data_size")
                )
            )
        requests = [r for r in pod.api.requests if type(r).__name__ == "CreateQueuedResourceRequest"]
        nodes = [request.queued_resource.tpu.node_spec[0].node for request in requests]
        # first contact, the study
        assert [node.accelerator_type for node in nodes] == ["v4-8", "v4-16"]
        assert {node.service_account.email for node in nodes} == {
            "trm-pod@my-project.iam.gserviceaccount.com"
        }
        assert not pod.api.queued
    assert any("node READY" in text for text in said)
    assert (folder / "results" / "plots" / "scaling_laws.pdf").stat().st_size > 5000
