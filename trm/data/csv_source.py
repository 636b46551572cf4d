"""Puzzles in CSV files, plain or gzipped: the official layout, `source,question,answer,rating`, and its like."""

import codecs
import csv
import gzip
import io
import os
import re
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, compress, islice
from pathlib import Path

import numpy as np

from trm.data.progress import Progress
from trm.errors import UserError

BLOCK = 1 << 15
"""Rows that are converted at once."""
LONGEST_LINE = 1 << 20
"""Characters read at once, so that a file without line ends does not fill the memory."""

GZIP = b"\x1f\x8b"
"""First bytes of a gzipped file, whatever its name."""

NAMES = {
    "question": ("question", "questions", "quizzes", "quiz", "puzzle", "puzzles", "board", "sudoku",
                 "problem"),
    "answer": ("answer", "answers", "solutions", "solution", "solved"),
    "rating": ("rating",),
}  # fmt: skip
"""What published collections call the columns."""

Convert = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


class BadRows(UserError):
    """Rows that are refused for one reason; the message names the first of them."""

    def __init__(self, name: str, lines: np.ndarray, bad: np.ndarray, sentence: str):
        self.bad, self.sentence = bad, sentence
        self.lines: list[int] = lines[bad].tolist()
        super().__init__(f"{name} line {self.lines[0]}: {sentence}{_others(self.lines)}")


def read_csv(
    path: Path, cells: int, convert: Convert, name: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Questions and answers, uint8 [puzzles, cells], and ratings (int32; -1 where there is none).

    Puzzle i is in line i + 2. Columns may be in any order and separated by commas, tabs or semicolons; `source` and
    `rating` may be missing.

    Args:
        convert: maps characters (questions, answers, numbers of their lines) to values; raises `BadRows` for invalid
            ones.
        name: the file's name in messages.

    Raises:
        UserError: naming file and line of the first short, long or malformed line, the next two, and their number.
    """
    parts, line = [], 2
    columns: dict[str, int] = {}
    width = 0
    faults: list[BadRows] = []
    for rows in _blocks(path, name):
        if not columns:
            columns, width = columns_of(rows[0]), len(rows[0])
            if not {"question", "answer"} <= set(columns):
                header = ", ".join(rows[0]) or "no columns"
                raise UserError(f"{name} line 1: has {header}; question, answer expected: correct the header")
            rows.pop(0)
        lines = np.arange(line, line + len(rows))
        line += len(rows)
        while rows:
            try:
                questions, answers, ratings = _parse(rows, columns, width, cells, name, lines)
                parts.append((*convert(questions, answers, lines), ratings))
                break
            except BadRows as found:  # the others may have faults of another kind
                faults.append(found)
                rows, lines = list(compress(rows, ~found.bad)), lines[~found.bad]
    if faults:
        first = min(faults, key=lambda fault: fault.lines[0])
        numbers = sorted(number for fault in faults for number in fault.lines)
        raise UserError(f"{name} line {numbers[0]}: {first.sentence}{_others(numbers)}")
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
            stream = gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == GZIP else file
            refuse_utf16(stream.peek(64), name)
            text = io.TextIOWrapper(stream, "utf-8-sig", errors="replace", newline="")
            first = text.readline(LONGEST_LINE)
            rest = iter(partial(text.readline, LONGEST_LINE), "")
            reader = csv.reader(
                chain([first] * bool(first), rest), strict=True, delimiter=delimiter_of(first)
            )
            while rows := list(islice(reader, BLOCK)):
                done += len(rows)
                while rows and not rows[-1] and len(rows) < BLOCK:
                    rows.pop()  # blank lines at the end of the file
                if reader.line_num != done:
                    raise UserError(f"{name} line {done}: a quoted field spans several lines: correct it")
                progress.update(file.tell() >> 20)
                if rows:
                    yield rows
            progress.close(file.tell() >> 20)
    except csv.Error as error:
        raise UserError(f"{name} line {reader.line_num}: {error}; correct or remove it") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{name} is not a complete gzip file ({error}): fetch it again") from None
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror or error}") from None


def refuse_utf16(head: bytes, name: str) -> None:
    """Refuse a file that begins as one in UTF-16 does, with its mark or a zero beside each letter (UserError)."""
    if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) or b"\0" in head[:64]:
        raise UserError(
            f"{name} looks like UTF-16 text, not UTF-8: save it as CSV UTF-8, or convert it by "
            "`iconv -f UTF-16 -t UTF-8`"
        )


def delimiter_of(header: str) -> str:
    """What separates the fields of a file with this first line."""
    return max(",\t;", key=header.count)


def columns_of(row: list[str]) -> dict[str, int]:
    """Place of each column of a header by its official name; empty: it names no question, so it is no header."""
    fields = [cell.strip().lower() for cell in row]
    found = {name: [fields.index(word) for word in words if word in fields] for name, words in NAMES.items()}
    return {name: places[0] for name, places in found.items() if places} if found["question"] else {}


def _parse(
    rows: list[list[str]], columns: dict[str, int], width: int, cells: int, name: str, lines: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Characters of questions and answers, and ratings, of the rows in `lines`."""
    bad = np.array([len(row) != width for row in rows])
    refuse(bad, name, lines, lambda at: f"{len(rows[at])} fields instead of {width}: correct or remove it")
    cut = list(zip(*rows))
    # a space may stand for a blank cell
    fields = {
        column: tuple(text if len(text) == cells else text.strip() for text in cut[place])
        for column, place in columns.items()
    }

    def characters(column: str) -> np.ndarray:
        lengths = np.array([len(text) for text in fields[column]])
        refuse(
            lengths != cells,
            name,
            lines,
            lambda at: f"the {column} has {lengths[at]} characters instead of {cells}",
        )
        text = "".join(fields[column]).encode("latin-1", "replace")
        return np.frombuffer(text, np.uint8).reshape(-1, cells)

    ratings = fields.get("rating", ("",) * len(rows))
    bad = np.array([bool(text) and not re.fullmatch("[0-9]{1,9}", text) for text in ratings])
    refuse(
        bad, name, lines, lambda at: f"the rating {ratings[at]!r} is not a whole number of at most 9 digits"
    )
    numbers = np.array([int(text or -1) for text in ratings], dtype=np.int32)
    return characters("question"), characters("answer"), numbers


def refuse_characters(
    bad: np.ndarray, texts: np.ndarray, column: str, allowed: str, name: str, lines: np.ndarray
) -> None:
    """`refuse` the rows of `bad`, bool [puzzles, cells], by the first wrong character of a column."""

    def sentence(at: int) -> str:
        cell = int(bad[at].argmax())
        return f"the {column} has {chr(texts[at, cell])!r} at character {cell + 1}: use only {allowed}"

    refuse(np.asarray(bad.any(axis=1)), name, lines, sentence)


def refuse(bad: np.ndarray, name: str, lines: np.ndarray, sentence: Callable[[int], str]) -> None:
    """Raise `BadRows` if there is a True in `bad`; `sentence`: what is wrong with row `at` and what to do."""
    if bad.any():
        raise BadRows(name, lines, bad, sentence(int(bad.argmax())))


def _others(numbers: list[int]) -> str:
    """The second and third of the bad lines, and how many there are."""
    if len(numbers) < 2:
        return ""
    more = f"s {numbers[1]} and {numbers[2]}" if len(numbers) > 2 else f" {numbers[1]}"
    return f"; also bad: line{more}" + f" ({len(numbers):,} bad lines in all)" * (len(numbers) > 3)
