"""Report -> PDF: pages set by reportlab, the vector figures laid onto them by pypdf. No browser, no network.

The same report gives the same bytes: reportlab's invariant mode, no dates.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import matplotlib
from pypdf import PageObject, PdfReader, PdfWriter, Transformation
from reportlab.lib import colors
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.platypus import (
    BaseDocTemplate,
    CondPageBreak,
    Flowable,
    Frame,
    KeepTogether,
    PageTemplate,
    Paragraph,
    Spacer,
    Table,
    TableStyle,
)

from trm.analysis.report.contents import BUDGET_COLUMNS, FigureBlock, FitBlock, Report, Section
from trm.analysis.words import count, duration

MARGIN = 18 * mm
WIDTH = A4[0] - 2 * MARGIN
TALLEST = 165 * mm
STATES = {"met": "#00664b", "not met": "#a3001c", "not run": "#5b5b57"}
LINE = colors.HexColor("#dcdcd6")
RED = "#a3001c"

BODY = ParagraphStyle("body", fontName="Report", fontSize=8.5, leading=12, spaceAfter=3)
SMALL = ParagraphStyle("small", BODY, fontSize=6.8, leading=9, textColor=colors.HexColor("#5b5b57"))
CELL = ParagraphStyle("cell", BODY, fontSize=6.8, leading=8.6, spaceAfter=0)
HEAD = ParagraphStyle("head", CELL, fontName="Report-Bold", textColor=colors.HexColor("#5b5b57"))
TITLE = ParagraphStyle("title", BODY, fontName="Report-Bold", fontSize=17, leading=21, spaceAfter=6)
SECTION = ParagraphStyle(
    "section", BODY, fontName="Report-Bold", fontSize=11.5, leading=15, spaceBefore=9, spaceAfter=4
)
CODE = ParagraphStyle("code", BODY, fontName="Report-Mono", fontSize=6.8, leading=9)


class Picture(Flowable):
    """Room for a figure's PDF page; where it stands is noted when the page is set."""

    def __init__(self, path: Path, placed: list[tuple[int, float, float, float, Path]]):
        super().__init__()
        box = PdfReader(path).pages[0].mediabox
        self.path, self.placed = path, placed
        self.factor = min(1.0, WIDTH / float(box.width), TALLEST / float(box.height))
        self.width, self.height = float(box.width) * self.factor, float(box.height) * self.factor

    def wrap(self, *_: float) -> tuple[float, float]:
        return self.width, self.height

    def draw(self) -> None:
        x, y = self.canv.absolutePosition(0, 0)
        self.placed.append((self.canv.getPageNumber() - 1, x, y, self.factor, self.path))


class _Document(BaseDocTemplate):
    """A4 with page numbers and an outline of the sections."""

    def __init__(self, buffer: io.BytesIO, report: Report):
        super().__init__(
            buffer,
            pagesize=A4,
            leftMargin=MARGIN,
            rightMargin=MARGIN,
            topMargin=MARGIN,
            bottomMargin=MARGIN,
            title=report.title,
            subject=f"study {report.study}, scale {report.scale}",
            creator="trm.analysis",
            author="",
            invariant=1,
        )
        self.foot = f"study {report.study}, scale {report.scale}"
        frame = Frame(MARGIN, MARGIN, WIDTH, A4[1] - 2 * MARGIN, 0, 0, 0, 0)
        self.addPageTemplates(PageTemplate("page", [frame], onPage=self._page))

    def _page(self, canvas: Any, _: Any) -> None:
        canvas.setFont("Report", 6.5)
        canvas.setFillColor(colors.HexColor("#5b5b57"))
        canvas.drawString(MARGIN, 10 * mm, self.foot)
        canvas.drawRightString(A4[0] - MARGIN, 10 * mm, str(canvas.getPageNumber()))

    def afterFlowable(self, flowable: Flowable) -> None:
        if isinstance(flowable, Paragraph) and flowable.style.name == "section":
            key = f"section-{self.seq.nextf('section')}"
            self.canv.bookmarkPage(key)
            self.canv.addOutlineEntry(flowable.getPlainText(), key, 0)


def document(report: Report) -> bytes:
    """The PDF's bytes."""
    _fonts()
    placed: list[tuple[int, float, float, float, Path]] = []
    buffer = io.BytesIO()
    _Document(buffer, report).build(_story(report, placed))
    reader = PdfReader(buffer)
    writer = PdfWriter(clone_from=reader)
    pages: dict[Path, PageObject] = {}
    for number, x, y, factor, path in placed:
        if path not in pages:
            pages[path] = PdfReader(path).pages[0]
        writer.pages[number].merge_transformed_page(
            pages[path], Transformation().scale(factor).translate(x, y)
        )
    writer.compress_identical_objects()
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def _fonts() -> None:
    """DejaVu Sans, which comes with matplotlib: it has every sign that the sentences use."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    for name, file in (
        ("Report", "DejaVuSans"),
        ("Report-Bold", "DejaVuSans-Bold"),
        ("Report-Mono", "DejaVuSansMono"),
    ):
        if name not in pdfmetrics.getRegisteredFontNames():
            pdfmetrics.registerFont(TTFont(name, str(folder / f"{file}.ttf")))
    pdfmetrics.registerFontFamily("Report", normal="Report", bold="Report-Bold")


def _text(value: object, style: ParagraphStyle = BODY, colour: str = "") -> Paragraph:
    text = escape(str(value))
    return Paragraph(f'<font color="{colour}">{text}</font>' if colour else text, style)


def _story(report: Report, placed: list[tuple[int, float, float, float, Path]]) -> list[Flowable]:
    intro = f"Study {report.study} at scale {report.scale}. {report.intro}"
    story: list[Flowable] = [_text(report.title, TITLE), _text(intro)]
    if report.problems:
        story.append(_text(f"{count(len(report.problems), 'thing')} missing or failed:", BODY, RED))
        story += [_text(f"• {text}", CELL, RED) for text in report.problems[:40]]
        if len(report.problems) > 40:
            story.append(_text(f"… and {len(report.problems) - 40} more", CELL, RED))
    story.append(_text("Criteria", SECTION))
    story.append(
        _table(
            [
                [
                    _text(item.state, HEAD, STATES[item.state]),
                    _text(item.name, CELL),
                    _text(item.number, CELL),
                ]
                for item in report.criteria
            ],
            [18 * mm, 58 * mm, WIDTH - 76 * mm],
        )
    )
    story.append(_text("Experiments", SECTION))
    story.append(_summary(report.sections))
    for block in report.figures:
        story += _picture(block, placed)
    story.append(_text("Beside the paper", SECTION))
    story.append(
        _grid(["configuration", "paper", "here", "difference"], [list(row.values()) for row in report.paper])
    )
    story.append(_text("Plan against actual", SECTION))
    names = ["experiment", "runs", "planned", "actual", "actual / planned, of what has run"]
    story.append(_grid(names, [list(row.values()) for row in report.cost]))
    if report.budget:
        story += [Spacer(1, 3 * mm), _text(report.budget)]
    if report.budget_rows:
        story.append(_grid(BUDGET_COLUMNS[: len(report.budget_rows[0])], report.budget_rows))
    for section in report.sections:
        story += _section(section, placed)
    story.append(_text("Provenance", SECTION))
    story += [_text(f"{name}: {value}", SMALL) for name, value in report.provenance]
    story.append(_text(report.rebuild, CODE))
    return story


def _summary(sections: Sequence[Section]) -> Table:
    rows = [[_text(name, HEAD) for name in ("experiment", "question", "answer", "runs", "device time")]]
    for section in sections:
        runs = f"{section.runs} of {section.planned_runs}" if section.planned_runs else str(section.runs)
        rows.append(
            [
                _text(section.name, CELL, RED if section.problems else ""),
                _text(section.question, CELL),
                _text(section.answer, CELL),
                _text(runs, CELL),
                _text(duration(section.hours), CELL),
            ]
        )
    return _table(rows, [30 * mm, 40 * mm, WIDTH - 104 * mm, 16 * mm, 18 * mm], header=True)


def _section(section: Section, placed: list[tuple[int, float, float, float, Path]]) -> list[Flowable]:
    title = section.name + (f" ({', '.join(section.aliases)})" if section.aliases else "")
    story: list[Flowable] = [CondPageBreak(130 * mm), _text(title, SECTION)]
    for name, text in (("Question", section.question), ("Hypothesis", section.hypothesis)):
        if text:
            story.append(_text(f"{name}. {text}"))
    story += [_text(f"• {text}", BODY, RED) for text in section.problems]
    for block in section.figures:
        story += _picture(block, placed)
    if section.points:
        story.append(_grid(section.columns, section.points))
    for block in section.fits:
        story += _fit(block)
    story.append(Spacer(1, 3 * mm))
    story += [_text(f"{name}: {value}", SMALL) for name, value in section.provenance]
    if section.rebuild:
        story.append(_text(section.rebuild, CODE))
    return story


def _picture(block: FigureBlock, placed: list[tuple[int, float, float, float, Path]]) -> list[Flowable]:
    if block.png is None or not block.path.exists():
        return [_text(f"Figure {block.path.name} is missing.", BODY, RED)]
    parts = [Picture(block.path, placed), _text(block.sentence), _text(block.caption, SMALL)]
    return [Spacer(1, 3 * mm), KeepTogether(parts)]


def _fit(block: FitBlock) -> list[Flowable]:
    story: list[Flowable] = [Spacer(1, 2 * mm), _text(f"Fit: {block.title}", HEAD)]
    if block.rows:
        story.append(_grid(list(block.rows[0]), [list(row.values()) for row in block.rows]))
    return story + [_text(f"• {note}", SMALL) for note in block.notes]


def _grid(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table whose columns are as wide as their longest word, and share the rest by what they hold."""
    used = [i for i in range(len(columns)) if any(str(row[i]) for row in rows)] or list(range(len(columns)))
    columns, rows = [columns[i] for i in used], [[str(row[i]) for i in used] for row in rows]
    least, wanted = [], []
    for i, name in enumerate(columns):
        cells = [(name, HEAD), *((row[i], CELL) for row in rows)]
        least.append(6 + max(_width(word, style) for text, style in cells for word in text.split() or [""]))
        wanted.append(6 + max(min(_width(text, style), 0.4 * WIDTH) for text, style in cells))
    room = max(0.0, WIDTH - sum(least))
    more = [max(0.0, wish - base) for wish, base in zip(wanted, least)]
    share = min(1.0, room / sum(more)) if sum(more) else 0.0
    widths = [base + share * extra for base, extra in zip(least, more)]
    if sum(widths) > WIDTH:
        widths = [width * WIDTH / sum(widths) for width in widths]
    body = [[_text(cell, CELL) for cell in row] for row in rows]
    return _table([[_text(name, HEAD) for name in columns], *body], widths, header=True)


def _width(text: str, style: ParagraphStyle) -> float:
    return float(pdfmetrics.stringWidth(text, style.fontName, style.fontSize))


def _table(rows: list[list[Any]], widths: list[float], *, header: bool = False) -> Table:
    style = [
        ("VALIGN", (0, 0), (-1, -1), "TOP"),
        ("LINEBELOW", (0, 0), (-1, -1), 0.4, LINE),
        ("LEFTPADDING", (0, 0), (-1, -1), 0),
        ("RIGHTPADDING", (0, 0), (-1, -1), 4),
        ("TOPPADDING", (0, 0), (-1, -1), 2),
        ("BOTTOMPADDING", (0, 0), (-1, -1), 2.5),
    ]
    return Table(rows, widths, repeatRows=int(header), style=TableStyle(style), hAlign="LEFT")
