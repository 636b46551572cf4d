"""Public collections, from a web server on this machine."""

import hashlib
import io
import zipfile

import pytest

from trm.cli import main
from trm.tasks.sudoku import collections
from trm.tasks.sudoku.collections import Collection

PUZZLE = "................12..3.45.........4...1.......62.7...8.....9.......2.6....84...5.."
ANSWER = "176823954845967312293145678358612497417589263629734185562498731731256849984371526"
PAGE = f"# two puzzles\n{PUZZLE.replace('.', '0')}\n{'.' * 81}\n"
CHECKSUM = hashlib.sha256(PAGE.encode()).hexdigest()


@pytest.fixture
def server(hub):
    """Address of a server that has the puzzles as text and in an archive, and the archive."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("data/puzzles2_17_clue", PAGE)
        archive.writestr("data/other", "x")
    hub.files |= {"/puzzles.txt": PAGE.encode(), "/data.zip": packed.getvalue()}
    return f"http://127.0.0.1:{hub.server_port}", packed.getvalue()


@pytest.mark.parametrize("known", [False, True])
def test_a_collection_becomes_a_file_of_the_official_layout(server, known, tmp_path, monkeypatch, capsys):
    (address, content), out = server, tmp_path / "a.csv"
    place = [f"{address}/data.zip", "--member", "17_clue", "--sha256", hashlib.sha256(content).hexdigest()]
    if known:
        git_name = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        collection = Collection(f"{address}/data.zip", git_name, "17_clue", "0" * 64)
        monkeypatch.setitem(collections.COLLECTIONS, "17_clue", collection)
        place = ["17_clue"]
    assert main(["data", "fetch", "--from", *place, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "a.csv: 1 puzzles; 1 without a single solution left out, SHA-256" in said
    assert ("not byte for byte the file of the kept runs" in said) == known
    name = "17_clue" if known else "a"
    assert out.read_bytes() == f"source,question,answer,rating\r\n{name},{PUZZLE},{ANSWER},4\r\n".encode()


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("nothing", [], "cannot be downloaded"),
        ("puzzles.txt", ["--sha256", "0" * 64], f"has the SHA-256 {CHECKSUM}, not"),
        ("data.zip", [], "holds data/puzzles2_17_clue, data/other: give one of them with --member"),
        ("data.zip", ["--member", "other"], "line 1: the puzzle has 1 characters, not 81"),
    ],
)
def test_another_file_is_refused(server, name, more, words, tmp_path, capsys):
    out = tmp_path / "a.csv"
    assert main(["data", "fetch", "--from", f"{server[0]}/{name}", *more, "--out", str(out)]) == 2
    assert words in capsys.readouterr().err
    assert not out.exists()


def test_what_is_no_collection_is_said(capsys):
    assert main(["data", "fetch", "--from", "18_clue", "--out", "a.csv"]) == 2
    assert "give one of 17_clue, forum_hardest_1905_11+, or an address" in capsys.readouterr().err
