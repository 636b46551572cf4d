"""Puzzles in the official CSV layout: `source,question,answer,rating`, plain or gzipped, read in blocks as arrays."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from trm.data.progress import Progress
from trm.errors import UserError

BLOCK = 8 << 20
LONGEST_LINE = 1 << 20
"""Bytes; a 64x64 maze and its answer take 8 kB."""
_COMMA, _NEWLINE = 44, 10


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
    size = path.stat().st_size if path.exists() else 0
    progress = Progress(f"reading {name}", 0 if path.suffix == ".gz" else size >> 20, "MB")
    parts, lines, done = [], 1, 0
    columns: list[str] | None = None
    for block in _blocks(path, name):
        done += len(block)
        if columns is None:
            header, _, block = block.partition(b"\n")
            columns = _header(header, name)
        if block:
            questions, answers, ratings = _parse(block, columns, cells, name, lines + 1)
            part = (*convert(questions, answers, lines + 1), ratings)
            lines += len(part[0])
            parts.append(part)
        progress.update(done >> 20)
    progress.close(done >> 20)
    if not parts or lines == 1:
        raise UserError(f"{name} holds no puzzles: give a file with the header source,question,answer,rating")
    questions, answers, ratings = (np.concatenate(arrays) for arrays in zip(*parts))
    return questions, answers, ratings


def _blocks(path: Path, name: str) -> Iterator[bytes]:
    """The file in blocks of whole lines."""
    try:
        with gzip.open(path, "rb") if name.endswith(".gz") else open(path, "rb") as source:
            rest = b""
            while piece := source.read(BLOCK):
                piece = rest + piece
                cut = piece.rfind(b"\n") + 1
                rest = piece[cut:]
                if len(rest) > LONGEST_LINE:  # before it fills the memory: not a table, or a gzip bomb
                    raise UserError(
                        f"{name} has a line of more than {LONGEST_LINE >> 20} MB: it is not a table of puzzles"
                    )
                if cut:
                    yield piece[:cut].replace(b"\r\n", b"\n")
            if rest:
                yield rest.removesuffix(b"\r") + b"\n"
    except FileNotFoundError:
        raise UserError(f"{name} does not exist: check the path in data.files") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{name} is not a complete gzip file ({error}): fetch it again") from None
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror or error}") from None


def _header(line: bytes, name: str) -> list[str]:
    columns = [column.strip() for column in line.decode("utf-8-sig", "replace").strip().split(",")]
    for needed in ("question", "answer"):
        if columns.count(needed) != 1:
            raise UserError(
                f"{name} line 1: no column `{needed}`: the header must be source,question,answer,rating"
            )
    return columns


def _parse(
    block: bytes, columns: list[str], cells: int, name: str, first: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if b'"' in block:
        block = _unquoted(block, name, first)
    data = np.frombuffer(block, dtype=np.uint8)
    ends = np.flatnonzero(data == _NEWLINE)
    starts = np.concatenate([[0], ends[:-1] + 1])
    commas = np.flatnonzero(data == _COMMA)
    counts = np.searchsorted(commas, ends) - np.searchsorted(commas, starts)
    wrong = np.flatnonzero(counts != len(columns) - 1)
    if len(wrong):
        at = int(wrong[0])
        empty = starts[at] == ends[at]
        what = "is empty" if empty else f"has {counts[at] + 1} fields instead of {len(columns)}"
        raise UserError(f"{name} line {first + at} {what}: correct or remove it")
    edges = np.concatenate([starts[:, None], commas.reshape(len(ends), -1) + 1, ends[:, None] + 1], axis=1)

    def texts(column: str) -> np.ndarray:
        at = columns.index(column)
        begin, length = edges[:, at], edges[:, at + 1] - edges[:, at] - 1
        bad = np.flatnonzero(length != cells)
        if len(bad):
            raise UserError(
                f"{name} line {first + int(bad[0])}: the {column} has {length[bad[0]]} characters instead of {cells}"
            )
        found = np.empty((len(begin), cells), dtype=np.uint8)
        for start in range(0, len(begin), 8192):
            rows = slice(start, start + 8192)
            found[rows] = data[begin[rows, None] + np.arange(cells)]
        return found

    ratings = np.full(len(ends), -1, dtype=np.int32)
    if "rating" in columns:
        at = columns.index("rating")
        ratings = _integers(data, edges[:, at], edges[:, at + 1] - 1, name, first)
    return texts("question"), texts("answer"), ratings


def _integers(data: np.ndarray, begin: np.ndarray, end: np.ndarray, name: str, first: int) -> np.ndarray:
    """Non-negative integers written at data[begin:end]; an empty field is -1."""
    length = end - begin
    values = np.zeros(len(begin), dtype=np.int64)
    bad = length > 9
    for offset in range(int(min(length.max(initial=0), 9))):
        inside = offset < length
        digit = data[np.where(inside, begin + offset, begin)].astype(np.int64) - ord("0")
        bad |= inside & ((digit < 0) | (digit > 9))
        values = np.where(inside, values * 10 + digit, values)
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        text = bytes(data[begin[at] : end[at]]).decode(errors="replace")
        raise UserError(
            f"{name} line {first + at}: the rating {text!r} is not a whole number of at most 9 digits"
        )
    return np.where(length == 0, -1, values).astype(np.int32)


def _unquoted(block: bytes, name: str, first: int) -> bytes:
    """Lines with their quotes removed; commas inside quoted fields become blanks."""
    lines = []
    for number, line in enumerate(block.decode("utf-8", "replace").splitlines(), start=first):
        try:
            fields = next(csv.reader(io.StringIO(line), strict=True), [])
        except csv.Error as error:
            raise UserError(f"{name} line {number}: {error}; correct or remove it") from None
        lines.append(",".join(field.replace(",", " ") for field in fields))
    return ("\n".join(lines) + "\n").encode()


def refuse(bad: np.ndarray, name: str, first: int, sentence: Callable[[int], str]) -> None:
    """Raise a UserError for the first True of `bad` (one entry a puzzle from line `first` on), naming file and line."""
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise UserError(f"{name} line {first + at}: {sentence(at)}")
