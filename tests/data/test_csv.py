"""CSV sources: layouts that are read, and a table of what is refused, by file and line."""

import gzip
import shutil
from copy import deepcopy

import pytest
import yaml

from tests.data.conftest import csv_config, pool_csv
from tests.pipeline.conftest import STUDY
from trm.cli import main
from trm.cli.solve import _read
from trm.data import csv_source
from trm.errors import UserError
from trm.io import sha256_file
from trm.storage import open_store
from trm.tasks import build
from trm.tasks.build import build_source
from trm.tasks.sudoku.classes import FOUR
from trm.tasks.sudoku.geometry import parse_puzzles, to_text

HEADER = "source,question,answer,rating\n"


def test_plain_gzipped_and_several_files(tmp_path, pool_4x4, monkeypatch):
    """Without a newline at the end; gzipped under another name, with spaces around fields."""
    rows = pool_csv(tmp_path / "all.csv", pool_4x4, 60)
    (tmp_path / "a.csv").write_text(HEADER + "".join(rows[:30]).rstrip("\n"))
    packed = (HEADER + "".join(rows[30:])).replace("\n", "\r\n").replace(",", " , ")
    (tmp_path / "b").write_bytes(gzip.compress(packed.encode()))
    monkeypatch.setattr(csv_source, "BLOCK", 7)  # many blocks
    parted = build_source(csv_config(tmp_path / "a.csv", tmp_path / "b"), tmp_path / "parted")
    whole = build_source(csv_config(tmp_path / "all.csv"), tmp_path / "whole")
    assert (parted.questions == whole.questions).all()
    assert (parted.answers == whole.answers).all()
    assert parted.ratings.tolist() == list(range(60))
    assert parted.report["classes"] == 60
    assert "made" not in (tmp_path / "parted" / "manifest.json").read_text()


@pytest.mark.parametrize(
    ("header", "separator", "blank"),
    [
        ("quizzes,solutions", ",", "0"),
        ("Puzzle\tSolution", "\t", "_"),
        ("board;solved", ";", "-"),
        ("sudoku,answer", ",", "*"),
        ("puzzles,solution", ",", " "),
        ("\ufeffanswer,question", ",", "."),  # in another order, as Windows saves it
    ],
)
def test_layouts_of_published_collections(header, separator, blank, tmp_path, pool_4x4, monkeypatch):
    """Their names of columns, separators and blank cells, without ratings, with blank lines at the end."""
    rows = [line.split(",")[1:3] for line in pool_csv(tmp_path / "a.csv", pool_4x4, 20)]
    order = -1 if "answer," in header else 1
    texts = [separator.join([question.replace(".", blank), answer][::order]) for question, answer in rows]
    (tmp_path / "a.csv").write_text("\n".join([header, *texts, "", ""]))
    monkeypatch.setattr(csv_source, "BLOCK", 8)
    pool = build_source(csv_config(tmp_path / "a.csv", symmetry="none"), tmp_path / "out")
    assert sorted(to_text(question - 1) for question in pool.questions) == sorted(row[0] for row in rows)
    assert set(pool.ratings.tolist()) == {0}  # solved by ourselves
    _, read, wanted = _read(str(tmp_path / "a.csv"))
    values = parse_puzzles(FOUR, [text for _, text in read], [""] * len(read))
    assert [to_text(question) for question in values] == [row[0] for row in rows]
    assert wanted == [row[1] for row in rows]


def test_equivalent_puzzles_are_kept_once(tmp_path, pool_4x4):
    row, *_, other = pool_csv(tmp_path / "a.csv", pool_4x4, 6)
    _, *grids, _ = row.split(",")
    renamed = [grid.translate(str.maketrans("1234", "2341")) for grid in grids]
    swapped = ["".join(grid[4 * r : 4 * r + 4] for r in (1, 0, 2, 3)) for grid in grids]
    same = "".join(f"made,{','.join(each)},0\n" for each in (renamed, swapped))
    (tmp_path / "a.csv").write_text(HEADER + row + same + other)
    pool = build_source(csv_config(tmp_path / "a.csv"), tmp_path / "out")
    assert pool.puzzles == 2
    assert pool.report["equivalent_removed"] == 2
    assert pool.report["equivalent_puzzle_pairs"] == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no puzzles"),
        (HEADER, "holds no puzzles"),
        ("id,puzzle\n1,12\n", "line 1: has id, puzzle; question, answer expected"),
        (HEADER + "made,12,1234341221434321,0\n", "line 2: the question has 2 characters instead of 16"),
        (HEADER + "made,................,1234,0\n", "line 2: the answer has 4 characters instead of 16"),
        (HEADER + "\nmade,................,1234341221434321,0\n", "line 2: 0 fields instead of 4"),
        (HEADER + "made,1..5............,1234341221434321,0\n", "line 2: the question has '5' at character 4"),
        (HEADER + "made,1...............,123434122143432.,0\n", "line 2: the answer has '.' at character 16"),
        (HEADER + "made,2...34122143432.,1234341221434321,0\n", "line 2: the answer contradicts a clue"),
        (HEADER + "made,.234341221434321,1234341221434322,0\n",
         "line 2: the answer repeats a digit.*solution is another one"),
        (HEADER + "made,11..............,1134341221434321,0\n", "line 2: the answer repeats.*has no solution"),
        (HEADER + "made,.234341221434321,1234341221434321,0\nmade,12..............,1234341221434321,0\n",
         "line 3: the puzzle has more than one solution"),
        (HEADER + "made,.234341221434321,1234341221434321,hard\n",
         "line 2: the rating 'hard' is not a whole number"),
        (HEADER + '"made,.234341221434321,1234341221434321,0\n', "line 2: unexpected end of data"),
        (HEADER + '"a\nb",.234341221434321,1234341221434321,0\n', "a quoted field spans several lines"),
    ],
)  # fmt: skip
def test_malformed_files_are_refused_by_line(tmp_path, text, words):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=words) as caught:
        build_source(csv_config(path), tmp_path / "out")
    assert str(path) in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_a_file_in_utf_16_is_named_with_its_remedy(tmp_path, encoding):
    (tmp_path / "a.csv").write_bytes((HEADER + "made,.234341221434321,1234341221434321,0\n").encode(encoding))
    with pytest.raises(
        UserError, match=r"a\.csv looks like UTF-16 text, not UTF-8: save it as CSV UTF-8"
    ) as caught:
        build_source(csv_config(tmp_path / "a.csv"), tmp_path / "out")
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"a\.csv looks like UTF-16 text"):
        _read(str(tmp_path / "a.csv"))


def test_a_line_is_read_up_to_a_limit(tmp_path, monkeypatch):
    """A file without line ends would fill the memory."""
    monkeypatch.setattr(csv_source, "LONGEST_LINE", 64)
    row, long = ",.234341221434321,1234341221434321,0\n", 64 * "x"
    cases = {HEADER + long + row: "line 2: 1 fields", f"{long},{HEADER}": "line 1: has x+;"}
    for text, words in cases.items():
        (tmp_path / "long.csv").write_text(text)
        with pytest.raises(UserError, match=words):
            build_source(csv_config(tmp_path / "long.csv"), tmp_path / "out")


def test_all_bad_rows_are_counted_and_the_first_three_named(tmp_path, monkeypatch):
    """Whatever is wrong with them, and in whichever block they are."""
    monkeypatch.setattr(csv_source, "BLOCK", 4)
    good, short = "made,.234341221434321,1234341221434321,0\n", "made,12,12,0\n"
    other = "made,2...34122143432.,1234341221434321,0\n"
    (tmp_path / "bad.csv").write_text(
        HEADER + good + other + good + short + good * 5 + short * 2 + other + good
    )
    with pytest.raises(UserError, match=r"also bad: lines 5 and 11 \(5 bad lines in all\)$") as caught:
        build_source(csv_config(tmp_path / "bad.csv"), tmp_path / "out")
    assert "line 3: the answer contradicts a clue" in str(caught.value)


def test_broken_gzip_missing_file_and_wrong_checksum(tmp_path, pool_4x4):
    good, packed = tmp_path / "a.csv", tmp_path / "a.csv.gz"
    pool_csv(good, pool_4x4, 3)
    packed.write_bytes(gzip.compress(good.read_bytes())[:-9])
    for config, words in (
        (csv_config(packed), r"not a complete gzip file"),
        (csv_config(tmp_path / "none.csv"), "does not exist"),
        (csv_config(good, sha256=("0" * 64,)), "has the SHA-256"),
        (csv_config("gs://bucket/a.csv"), r"give its checksum in data.sha256"),
    ):
        with pytest.raises(UserError, match=words):
            build_source(config, tmp_path / "out")


def test_a_login_node_fetches_what_comes_from_the_network(tmp_path, pool_4x4, monkeypatch, capsys):
    """`trm data fetch` makes the pools that need it, and only those; each file is downloaded once."""
    folder, opened = tmp_path / "bucket", []  # a folder plays the bucket
    folder.mkdir()
    pool_csv(path := folder / "a.csv", pool_4x4, 40)
    monkeypatch.setattr(build, "open_store", lambda uri: opened.append(uri) or open_store(folder))
    monkeypatch.setenv("TRM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    document, remote = (
        deepcopy(STUDY),
        {"data.files": ["gs://team/a.csv"], "data.sha256": [sha256_file(path)]},
    )
    remote |= {"data.source": "csv", "data.clues_min": 0, "data.clues_max": 0}
    document["experiments"]["batch"] |= {"grid": {}, "set": remote}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(document))
    for experiments in ([], ["batch"]):
        assert main(["data", "fetch", "--study", "study.yaml", *experiments]) == 0
        (manifest,) = tmp_path.glob("results/sources/*/manifest.json")
        said = capsys.readouterr().out
        assert f"{manifest.parent.relative_to(tmp_path)}: 40 puzzles" in said
        assert "Everything that comes from the network is here." in said
        shutil.rmtree(tmp_path / "results")
    assert opened == ["gs://team"]
