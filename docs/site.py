"""A hook of MkDocs: pages from outside docs/ join the site, and a link to a file that is not in it stops the build.

Links are written as GitHub reads them, relative to the file in the repository.
"""

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel

ADDED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "config/README.md": "configuration.md",
    "models/sudoku6/README.md": "models/sudoku6.md",
    "models/sudoku9/README.md": "models/sudoku9.md",
    "models/sudoku9_hard/README.md": "models/sudoku9_hard.md",
    "snakemake-executor-plugin-tpu/docs/further.md": "tpu-plugin.md",
    "examples/train_simple.py": "examples/train_simple.py",
}
"""Files outside docs/ -> their place in the site."""
LINK = re.compile(r'(\]\(|src=")([^)"\s#:]+)(#[^)"\s]*)?(?=[)"\s])')
CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    root = Path(config.config_file_path).parent
    for source, place in ADDED.items():
        files.append(File.generated(config, place, abs_src_path=str(root / source)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """The page with its links changed to places in the site. PluginError: a link to a file outside the site."""
    here = page.file.src_uri
    source = next((path for path, place in ADDED.items() if place == here), join("docs", here))

    def changed(found: re.Match[str]) -> str:
        target = normpath(join(dirname(source), found[2]))
        place = ADDED.get(target, target.removeprefix("docs/"))
        known = files.get_file_from_path(place)
        if known is None or known.inclusion.value <= InclusionLevel.DRAFT.value:
            raise PluginError(f"{source}: the link to {found[2]} leads to a file that is not in the site")
        return found[1] + relpath(place, dirname(here) or ".") + (found[3] or "")

    parts = CODE.split(markdown)
    return "".join(part if at % 2 else LINK.sub(changed, part) for at, part in enumerate(parts))
