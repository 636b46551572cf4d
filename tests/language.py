"""What a program can check of CONTRIBUTING's rules for English: `python -m tests.language`, part of `make lint`.

The length of sentences and the number of intervals are checked where readers begin, banned turns in every document.
"""

from __future__ import annotations

import ast
import re
import sys

from markdown_it import MarkdownIt

from tests.shell import ROOT

STRICT = ("README.md", "docs/results.md", "docs/tutorial.md")
"""Pages whose sentences have at most WORDS words, MEAN on average, and at most INTERVALS intervals."""
WORDS, MEAN, INTERVALS = 30, 20, 2
BANNED = re.compile(
    r"""\b(is|are|was|were)\ said\b | \bowed\b | \bspeaks?\b(?!\ of\ |\ to\ ) | \bfor\ once\b | \bso\ it\ came\b
    | \bin\ (a|one)\ sentence\b | \bends?\ in\ one\ sentence\b | \bone\ sentence\ (naming|with)\b | \bfeigns?\b
    | \bearns?\ (its|their)\b | \bpasses?\ remembers?\b | \bwhich\ is\ said\b | \bcalm\b""",
    re.VERBOSE | re.IGNORECASE,
)
INTERVAL = re.compile(r"\[[−-]?[\d.,]+, [−-]?[\d.,]+\]")
END = re.compile(r"(?<=[.!?])[)”\"]?\s+(?=[“\"(]?[A-Z0-9`])")


def blocks(text: str) -> list[str]:
    """What a reader sees of a page, block by block: paragraphs, items, cells. Code within a line is one word."""
    found = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "inline":
            shown = {"text": "", "softbreak": " ", "hardbreak": " ", "code_inline": "code"}
            children = [item for item in token.children or [] if item.type in shown]
            words = "".join(item.content if item.type == "text" else shown[item.type] for item in children)
            found.append(" ".join(words.split()))
    return [block for block in found if block]


def sentences(text: str) -> list[str]:
    return [sentence for block in blocks(text) for sentence in END.split(block)]


def faults(name: str, text: str, strict: bool) -> list[str]:
    """What is wrong with a page, one line each."""
    found = [
        f"{name}: '{turn[0]}' is a turn that CONTRIBUTING bans"
        for turn in BANNED.finditer(" ".join(blocks(text)))
    ]
    if strict:
        lengths = []
        for sentence in sentences(text):
            lengths.append(len(sentence.split()))
            if lengths[-1] > WORDS:
                found.append(f"{name}: {lengths[-1]} words, at most {WORDS}: {sentence}")
            if len(INTERVAL.findall(sentence)) > INTERVALS:
                found.append(f"{name}: more than {INTERVALS} intervals: {sentence}")
        if sum(lengths) > MEAN * len(lengths):
            found.append(f"{name}: {sum(lengths) / len(lengths):.1f} words a sentence, at most {MEAN}")
    return found


def documents() -> list[str]:
    """The pages that people read; not the lab notes, nor the changelog of earlier versions."""
    folders = (
        ".",
        "docs",
        "docs/results",
        "docs/results/*",
        "config",
        "models/*",
        "snakemake-executor-plugin-tpu",
    )
    pages = {str(page.relative_to(ROOT)) for folder in folders for page in ROOT.glob(f"{folder}/*.md")}
    return sorted(page for page in pages if page != "CHANGELOG.md")


def messages() -> dict[str, str]:
    """Messages of errors and captions of figures in the sources, place -> text; values are one word."""
    found = {}
    for path in sorted([*ROOT.glob("trm/**/*.py"), *ROOT.glob("snakemake-executor-plugin-tpu/src/**/*.py")]):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                error = getattr(node.func, "id", "") in ("UserError", "WorkflowError")
                texts = (
                    node.args[:1]
                    if error
                    else [item.value for item in node.keywords if item.arg == "caption"]
                )
                found |= {f"{path.relative_to(ROOT)}:{node.lineno}": _literal(text) for text in texts}
    return {place: text for place, text in found.items() if text}


def _literal(node: ast.expr) -> str:
    if isinstance(node, ast.BinOp):
        return _literal(node.left) + _literal(node.right)
    if isinstance(node, ast.JoinedStr):
        return "".join(_literal(part) for part in node.values)
    if isinstance(node, ast.Constant):
        return str(node.value)
    return "X" if isinstance(node, ast.FormattedValue) else ""


def main() -> int:
    pages = [faults(page, (ROOT / page).read_text("utf-8"), page in STRICT) for page in documents()]
    found = [fault for page in pages for fault in page]
    for place, text in messages().items():
        found += [fault for fault in faults(place, text, strict=True) if "a sentence, at most" not in fault]
    print("\n".join(found), file=sys.stderr, end="\n" * bool(found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
