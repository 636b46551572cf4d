"""A hook of MkDocs: puts the page's elements where the documentation has `<div id="play"></div>`."""

from typing import Any

from trm.play import models_folder
from trm.play.page import part

PLACE = '<div id="play"></div>'


def on_post_page(output: str, page: Any, config: Any) -> str:
    """The finished HTML of a page; after the search index was made, which the weights must not enter."""
    return output.replace(PLACE, part(models_folder())) if PLACE in output else output
