"""Settings, commands and variables in the documentation exist."""

import os
import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from snakemake_executor_plugin_tpu import ExecutorSettings
from snakemake_executor_plugin_tpu.__main__ import COMMANDS
from snakemake_executor_plugin_tpu.allocation import libtpu_variables, slice_of

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
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


def test_a_release_names_its_repository():
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert list(urls) == ["Repository"]  # no link to a page that does not exist yet
    assert ".invalid/" not in urls["Repository"] or "RELEASE" not in os.environ


@pytest.mark.skipif(not OURS[0].exists(), reason="only in the repository")
def test_every_promise_names_tests_that_exist():
    text = (ROOT / "docs" / "further.md").read_text()
    table = text.partition("| promise | test |\n|---|---|\n")[2].partition("\n\n")[0]
    assert len(table.splitlines()) > 10
    for row in table.splitlines():
        names, files, named_before = 0, [], False
        for file, name in re.findall(r"([\w/]*test_\w+\.py)|`([\w.]+)`", row.split("|")[2]):
            if file:
                folder = ROOT.parent if "/" in file else ROOT / "tests"
                files = [*([] if named_before else files), (folder / file).read_text()]
            pattern = rf"^(async )?def {re.escape(name)}\(".replace(r"\.\.\.", r"\w*")
            assert all(re.search(pattern, text, re.MULTILINE) for text in files if name), row
            names, named_before = names + 1, bool(name)
        assert names, row


def test_variables_of_one_host_jobs_are_documented():
    text = (ROOT / "docs" / "further.md").read_text()
    assert all(name in text for name in libtpu_variables(1, slice_of("v4-64")))
