"""A page on which a visitor solves Sudoku with the trained models: their weights and the program are inside it.

source.py     models -> the numbers that the page needs
page.py       template.html, style.css, engine.js, play.js -> a whole page, or a part of another
animation.py  the steps of one search as a moving picture
site.py       hook of the documentation site
engine.js     the network, the rules and the search of `trm solve`, in plain JavaScript
play.js       the board, its controls and the curve of the halt logit
"""

from pathlib import Path

from trm.io import shipped


def models_folder() -> Path:
    """The folder of the models: the one here, else that which comes with the code."""
    here = Path("models")
    return here if here.is_dir() else shipped("models")
