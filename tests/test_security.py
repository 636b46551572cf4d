"""The documents that name tests name tests that exist."""

import re

import pytest

from tests.shell import ROOT


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/files.md", "docs/extending.md"])
def test_every_sentence_has_its_test(page):
    named = re.findall(r"`((?:[\w-]+/)*tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / page).read_text())
    assert len(named) >= 4
    for path, name in named:
        assert f"def {name or 'test_'}" in (ROOT / path).read_text(), (path, name)
