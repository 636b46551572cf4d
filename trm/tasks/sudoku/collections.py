"""Public collections of Sudoku, one puzzle a line, brought into the official CSV layout with answers and ratings."""

import csv
import hashlib
import io
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import numpy as np

from trm.errors import UserError
from trm.io import sha256_file, write_bytes
from trm.tasks.sudoku.geometry import Geometry, parse_puzzles, to_text
from trm.tasks.sudoku.pool import rate, solve

NINE = Geometry(3, 3)
TDOKU = "https://github.com/t-dillon/tdoku/raw/af426180dc53aef89b82868e7b3fdfcf42165654/data.zip"
"""The benchmark files of the solver tdoku, at a commit."""
TDOKU_BLOB = "2ae6e4f8d021d2198069814c7db18bf11fcd9591"
"""What git calls that file: the SHA-1 of its size and content."""


class Collection(NamedTuple):
    """A file of puzzles, perhaps in an archive."""

    address: str
    checksum: str = ""
    """SHA-256, or git's SHA-1; empty: any file."""
    member: str = ""
    """End of its name in a zip archive."""
    sha256: str = ""
    """Of the CSV that kept runs were trained on; empty: not known to be this one."""


COLLECTIONS = {
    "17_clue": Collection(
        TDOKU,
        TDOKU_BLOB,
        "puzzles2_17_clue",
        "24cec1dfae0afddade6560dcb7c6e8c30243601384665bafb76561c1d4746525",
    ),
    "forum_hardest_1905_11+": Collection(TDOKU, TDOKU_BLOB, "puzzles5_forum_hardest_1905_11+"),
}
"""All 49,158 known puzzles with 17 clues (the list that Gordon Royle began), and the hardest of the New Sudoku Players'
Forum (May 2019, rated 11 and more)."""


def fetch(name: str, collection: Collection, out: Path) -> str:
    """Download a collection and write it to `out` as CSV, its puzzles with one solution; returns a sentence.

    Raises:
        UserError: no network, another file than the checksum's, no such member, or a line that is no puzzle.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "download")
        _download(collection.address, path)
        if collection.checksum and collection.checksum not in (found := (sha256_file(path), _git_name(path))):
            raise UserError(
                f"{collection.address} has the SHA-256 {found[0]}, not {collection.checksum}: it is another file"
            )
        content = _member(path, collection)
    numbered = [(number, line) for number, line in enumerate(content.decode("latin-1").splitlines(), 1)]
    lines = [(number, line[: NINE.cells]) for number, line in numbered if line.strip() and line[0] != "#"]
    places = [f"{collection.address} line {number}: " for number, _ in lines]
    questions = parse_puzzles(NINE, [line for _, line in lines], places)
    answers, solutions, _ = solve(NINE, questions)
    ratings = rate(NINE, questions)
    table = io.StringIO(newline="")
    writer = csv.writer(table)
    writer.writerow(("source", "question", "answer", "rating"))
    for at in np.flatnonzero(solutions == 1):
        writer.writerow((name, to_text(questions[at]), to_text(answers[at]), ratings[at]))
    write_bytes(out, table.getvalue().encode())
    one = int((solutions == 1).sum())
    dropped = f"; {len(lines) - one:,} without a single solution left out" * (one < len(lines))
    same = "" if not collection.sha256 else ", the file of the kept runs"
    if same and sha256_file(out) != collection.sha256:
        same = ", not byte for byte the file of the kept runs"
    return f"{out}: {one:,} puzzles{dropped}, SHA-256 {sha256_file(out)}{same}"


def _download(address: str, path: Path) -> None:
    try:
        with urlopen(address, timeout=60) as response, path.open("wb") as file:
            while part := response.read(1 << 20):
                file.write(part)
    except (URLError, OSError, ValueError) as error:
        if isinstance(error, HTTPError):
            error.close()
        raise UserError(
            f"{address} cannot be downloaded ({getattr(error, 'reason', error)}): check the address and the network"
        ) from None


def _git_name(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _member(path: Path, collection: Collection) -> bytes:
    if not zipfile.is_zipfile(path):
        return path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        found = [name for name in names if name.endswith(collection.member)]
        if len(found) != 1:
            raise UserError(f"{collection.address} holds {', '.join(names)}: give one of them with --member")
        return archive.read(found[0])
