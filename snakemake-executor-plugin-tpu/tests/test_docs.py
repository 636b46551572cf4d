"""Settings, commands and variables in the documentation exist."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from snakemake_executor_plugin_tpu import ExecutorSettings
from snakemake_executor_plugin_tpu.__main__ import COMMANDS
from snakemake_executor_plugin_tpu.allocation import libtpu_variables, slice_of

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *(ROOT / "src" / "snakemake_executor_plugin_tpu" / "docs").glob("*.md")]
OURS = [ROOT.parent / "docs" / "cloud.md", ROOT.parent / "profiles" / "tpu" / "config.yaml"]
PAGES += [page for page in OURS if page.exists()]
SETTINGS = {f"tpu-{item.name.replace('_', '-')}" for item in fields(ExecutorSettings)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_setting_and_command_exists(page):
    text = page.read_text()
    named = set(re.findall(r"(?:`|--|^)(tpu-[a-z-]+[a-z])(?=[:`=\s])", text, re.MULTILINE)) - {"tpu-check"}
    assert named <= SETTINGS
    for words in re.findall(r"-m snakemake_executor_plugin_tpu ([a-z|-]+)", text):
        assert set(words.split("|")) <= set(COMMANDS)


def test_variables_of_one_host_jobs_are_documented():
    text = (ROOT / "src" / "snakemake_executor_plugin_tpu" / "docs" / "further.md").read_text()
    assert all(name in text for name in libtpu_variables(1, slice_of("v4-64")))
