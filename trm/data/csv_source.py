"""Puzzles in the official CSV layout: `source,question,answer,rating`, plain or gzipped."""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from trm.data.progress import Progress
from trm.errors import UserError

BLOCK = 1 << 15
"""Rows that are converted at once."""
LONGEST_LINE = 1 << 20
"""Characters read at once, so that a file without line ends does not fill the memory."""

Convert = Callable[[np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray]]


def read_csv(
    path: Path, cells: int, convert: Convert, name: str | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Questions and answers, uint8 [puzzles, cells], and ratings (int32; -1 where there is none).

    Puzzle i is in line i + 2. Columns may be in any order; `source` and `rating` may be missing.

    Args:
        convert: maps a block's characters (questions, answers, number of its first line) to values; raises UserError
            for invalid ones.
        name: the file's name in messages (its path).

    Raises:
        UserError: naming file and line of the first short, long or malformed line.
    """
    name = name or str(path)
    parts, line = [], 2
    columns: list[str] = []
    for rows in _blocks(path, name):
        if not columns:
            columns = _header(rows.pop(0), name)
        if rows:
            questions, answers, ratings = _parse(rows, columns, cells, name, line)
            parts.append((*convert(questions, answers, line), ratings))
            line += len(rows)
    if not parts:
        raise UserError(f"{name} holds no puzzles: give a file with the header source,question,answer,rating")
    questions, answers, ratings = (np.concatenate(arrays) for arrays in zip(*parts))
    return questions, answers, ratings


def _blocks(path: Path, name: str) -> Iterator[list[list[str]]]:
    """The file's rows, header included, in blocks."""
    done = 0
    try:
        with open(path, "rb") as file:
            progress = Progress(f"reading {name}", os.fstat(file.fileno()).st_size >> 20, "MB")
            stream = gzip.GzipFile(fileobj=file) if name.endswith(".gz") else file
            text = io.TextIOWrapper(stream, "utf-8-sig", errors="replace", newline="")
            reader = csv.reader(iter(partial(text.readline, LONGEST_LINE), ""), strict=True)
            while rows := list(islice(reader, BLOCK)):
                done += len(rows)
                if reader.line_num != done:
                    raise UserError(f"{name} line {done}: a quoted field spans several lines: correct it")
                progress.update(file.tell() >> 20)
                yield rows
            progress.close(file.tell() >> 20)
    except csv.Error as error:
        raise UserError(f"{name} line {reader.line_num}: {error}; correct or remove it") from None
    except FileNotFoundError:
        raise UserError(f"{name} does not exist: check the path in data.files") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{name} is not a complete gzip file ({error}): fetch it again") from None
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror or error}") from None


def _header(row: list[str], name: str) -> list[str]:
    columns = [column.strip() for column in row]
    for needed in ("question", "answer"):
        if columns.count(needed) != 1:
            raise UserError(
                f"{name} line 1: no column `{needed}`: the header must be source,question,answer,rating"
            )
    return columns


def _parse(
    rows: list[list[str]], columns: list[str], cells: int, name: str, first: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Characters of questions and answers, and ratings, of rows from line `first` on."""
    bad = np.array([len(row) != len(columns) for row in rows])
    refuse(
        bad, name, first, lambda at: f"{len(rows[at])} fields instead of {len(columns)}: correct or remove it"
    )
    fields = dict(zip(columns, zip(*rows)))

    def characters(column: str) -> np.ndarray:
        lengths = np.array([len(text) for text in fields[column]])
        refuse(
            lengths != cells,
            name,
            first,
            lambda at: f"the {column} has {lengths[at]} characters instead of {cells}",
        )
        text = "".join(fields[column]).encode("latin-1", "replace")
        return np.frombuffer(text, np.uint8).reshape(-1, cells)

    ratings = fields.get("rating", ("",) * len(rows))
    bad = np.array([bool(text) and not re.fullmatch("[0-9]{1,9}", text) for text in ratings])
    refuse(
        bad, name, first, lambda at: f"the rating {ratings[at]!r} is not a whole number of at most 9 digits"
    )
    numbers = np.array([int(text or -1) for text in ratings], dtype=np.int32)
    return characters("question"), characters("answer"), numbers


def refuse_characters(
    bad: np.ndarray, texts: np.ndarray, column: str, allowed: str, name: str, first: int
) -> None:
    """`refuse` the first True of `bad`, bool [puzzles, cells], among the characters of a column."""

    def sentence(at: int) -> str:
        cell = int(bad[at].argmax())
        return f"the {column} has {chr(texts[at, cell])!r} at character {cell + 1}: use only {allowed}"

    refuse(np.asarray(bad.any(axis=1)), name, first, sentence)


def refuse(bad: np.ndarray, name: str, first: int, sentence: Callable[[int], str]) -> None:
    """Raise a UserError that names file and line of the first True in `bad`, which begins with line `first`."""
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise UserError(f"{name} line {first + at}: {sentence(at)}")
