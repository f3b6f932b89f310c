"""The report of a bout: a one-screen table, strict JSON, one self-contained HTML page; and the board of many bouts.

`stats.summarise` computes the numbers; here each is turned into text once, so that the terminal and the page agree.
A difference is always the method minus the contender on the same seeds, and a verdict is always on the method.
"""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
import json
import math
import re
import shutil
import statistics
import textwrap
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bakeoff.arena.stats import ClaimResult, Comparison, Interval, Row, Summary, summarise
from bakeoff.arena.store import write_atomic
from bakeoff.arena.types import Bout, Metric, Run

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.axes import Axes

INK, MUTED, FAINT, ACCENT, BAND = "#1c2024", "#62686f", "#c9ced3", "#1f5f99", "#eceff2"
DARK = {INK: "#e8eaed", MUTED: "#9aa2ab", FAINT: "#444c55", ACCENT: "#7fb5e6", BAND: "#262c33"}
"""The colours of the plots, and what each becomes on a dark page."""

OTHER_COLUMNS = ("wins", "p(Holm)", "verdict", "CPU\xa0s", "peak\xa0MB", "size")
IMAGES = {".svg": "image/svg+xml", ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}
MAX_FIGURE_BYTES = 400_000


@dataclass
class Report:
    """What a bout found; a function of its runs alone. ``print(report)`` shows `table`, a notebook the HTML table.

    Parameters
    ----------
    bout : Bout
    runs : list of Run
    summary : Summary
        The numbers, from `bakeoff.arena.stats.summarise`.
    figures : dict of str to str
        The bout's own figures: file name inside ``figures/`` of the report's folder -> caption. One that is
        missing, above 400 kB or neither SVG, PNG nor JPEG is named in the page but not embedded.
    """

    bout: Bout
    runs: list[Run]
    summary: Summary
    figures: dict[str, str] = field(default_factory=dict)

    @classmethod
    def build(cls, bout: Bout, runs: list[Run]) -> Report:
        """Summarise the runs of a bout; runs nothing and imports no method."""
        return cls(bout, runs, summarise(bout, runs))

    @property
    def method(self) -> str:
        """Name of the paper's contender, with which all others are compared."""
        return self.bout.paper_contender.name

    @property
    def log(self) -> bool:
        """Whether the primary metric is compared by ratios."""
        return self.bout.primary.scale == "log"

    @property
    def setting(self) -> str:
        """Seeds, contenders, primary metric, direction and margin in one line."""
        metric, rows = self.bout.primary, len(self.summary.rows)
        margin = f"{100 * metric.margin:g} %" if self.log else f"{metric.margin:g} {metric.unit}".strip()
        contest = f"{_count(len(self.bout.seeds), 'seed')}, {_count(rows, 'contender')}"
        return f"{contest}, primary: {metric.name} ({metric.better} is better), margin {margin}"

    @property
    def warning(self) -> str:
        """Line 1 of every report whose floor is not beaten; else empty."""
        floors = [row.versus for row in self.summary.rows if row.role == "floor" and row.versus]
        told = [f"against {v.rival}: {verdict_text(v, self.method)}" for v in floors if v.verdict != "better"]
        unbeaten = self.summary.floor_beaten is False
        return f"The floor is not beaten ({', '.join(told) or 'no verdict'})." if unbeaten else ""

    @property
    def headline(self) -> str:
        """The verdicts in one or two sentences."""
        words = {"better": "better than", "worse": "worse than", "practically equal": "practically equal to"}
        words |= {
            "not shown": "not shown to be better or worse than",
            "too few runs": "in too few runs to compare with",
        }
        rivals = [row.versus for row in self.summary.rows if row.versus and row.role != "floor"]
        found = {verdict: [v.rival for v in rivals if v.verdict == verdict] for verdict in words}
        told = "; ".join(f"{words[verdict]} {_and(names)}" for verdict, names in found.items() if names)
        floor = {True: " It beats the floor.", False: "", None: " Whether it beats the floor cannot be told."}
        where = f"On {self.bout.primary.name}, {self.method} is"
        return f"{where} {told or 'without a rival to compare with'}.{floor[self.summary.floor_beaten]}"

    @property
    def legend(self) -> str:
        """How to read the difference, the wins and the verdict."""
        units = sorted({row.versus.unit for row in self.summary.rows if row.versus} or {"seed"})
        kind = "ratio = {} divided by" if self.log else "difference = {} minus"
        pairs = f"{kind.format(self.method)} the contender on the same {' or '.join(f'{unit}s' for unit in units)}"
        return f"{pairs}; wins = wins-ties-losses of {self.method}; the verdict is on {self.method}."

    @property
    def header(self) -> list[str]:
        """Column titles, the same for every method; no-break spaces keep units together where a title folds."""
        metric = self.bout.primary
        score = f"{metric.name} ({metric.unit})" if metric.unit else metric.name
        versus = f"vs {self.method}: {'ratio' if self.log else 'difference'} [95\xa0%]"
        return ["contender", f"{score} [95\xa0%]", versus, *OTHER_COLUMNS]

    @property
    def cells(self) -> list[list[str]]:
        """The table as text: one list per contender, in the order of `header`."""
        rows = self.summary.rows
        scores = interval_texts([row.primary for row in rows], log=self.log)
        paired = [row.versus.difference if row.versus else None for row in rows]
        differences = interval_texts(paired, log=self.log, paired=True)
        table = []
        for row, score, difference in zip(rows, scores, differences, strict=True):
            told, versus = ["-"] * 4, row.versus
            if versus:
                p = "n/a" if versus.p_holm is None else f"{versus.p_holm:.3f}"
                wins = f"{versus.wins}-{versus.ties}-{versus.losses}"
                told = [difference, wins, "<0.001" if p == "0.000" else p, verdict_text(versus, self.method)]
            cost = [_sig(row.cost.get("cpu_s")), _sig(row.cost.get("peak_mb")), _size(row.cost.get("artefact_bytes"))]
            table.append([row.contender, score + _few(row), *told, *cost])
        return table

    def column(self, metric: Metric) -> list[str]:
        """An exploratory metric as text, in the order of the rows."""
        return interval_texts([row.exploratory.get(metric.name) for row in self.summary.rows], metric.scale == "log")

    @property
    def excluded(self) -> list[str]:
        """Contenders that do not apply, runs that did not end ok (first line of the error) and missing runs."""
        groups: dict[str, list[str]] = {}
        for run in self.runs:
            if run.status != "ok":
                first = next(filter(None, map(str.strip, run.error.splitlines())), "no message")
                groups.setdefault(f"{run.contender} {run.status}: {first[:200]}", []).append(str(run.seed))
        absent = [f"not applicable: {name} ({why})" for name, why in self.bout.absent.items()]
        ended = [f"not ok: {what} (seed {', '.join(seeds)})" for what, seeds in groups.items()]
        missing = {row.contender: row.statuses.get("missing", 0) for row in self.summary.rows}
        return absent + ended + [f"not run: {name}, {_count(n, 'seed')}" for name, n in missing.items() if n]

    def claim_numbers(self, result: ClaimResult) -> str:
        """What a claim's verdict rests on, or why it has none and what would decide it."""
        claim, number = result.claim, ""
        if result.value is not None:
            log = bool(claim.rival) and any(m.name == claim.metric and m.scale == "log" for m in self.bout.metrics)
            number = interval_texts([result.value], log=log, paired=bool(claim.rival))[0] + f" (n = {result.value.n})"
        command = f"decide it with: {claim.command}" if claim.command else ""
        return "; ".join(part for part in (number, result.why, command) if part)

    @property
    def notes(self) -> list[str]:
        """What the reader must know besides the numbers."""
        jobs = f"{self.bout.jobs} runs at a time: timings are not comparable"
        lines = [*self.summary.notes, *self.bout.notes, jobs if self.bout.jobs > 1 else "timings: one run at a time"]
        exploratory = ", ".join(m.name for m in self.bout.metrics if not m.primary)
        lines += [f"exploratory, in the report, without verdict: {exploratory}"] if exploratory else []
        return list(dict.fromkeys([*lines, f"scale: {self.bout.scale}"] if self.bout.scale else lines))

    def table(self, width: int | None = None) -> str:
        """The one-screen report in plain text, safe to print whatever the names hold.

        Parameters
        ----------
        width : int, optional
            Columns to fit; default: the terminal's, 110 where there is none. Words fold where the table would be
            wider; numbers are never cut.
        """
        width = max(width or shutil.get_terminal_size((110, 24)).columns, 60)
        lines = [self.warning] if self.warning else []
        lines += textwrap.wrap(f"{self.bout.method}: {self.bout.title}. {self.setting}", width)
        lines += ["", *_layout([self.header, *self.cells], width), "", *textwrap.wrap(self.legend, width)]
        for line in self.excluded:
            lines += textwrap.wrap(line, width, subsequent_indent="  ")
        lines += ["", "claims of the paper, as measured here"] if self.summary.claims else []
        for result in self.summary.claims:
            parts = [result.claim.text, *filter(None, [self.claim_numbers(result)])]
            lines += textwrap.wrap(f"  {result.verdict:18}  {' | '.join(parts)}", width, subsequent_indent=" " * 22)
        lines.append("")
        for note in [*self.notes, f"Use it: {self.bout.use}"]:
            lines += textwrap.wrap(note, width, subsequent_indent="  ")
        return "\n".join(map(printable, lines))

    def __str__(self) -> str:
        return self.table()

    def to_json(self) -> dict[str, Any]:
        """The same numbers as data, and every run's scores; strict JSON: undefined numbers are None."""
        parts = ("headline", "warning", "legend", "excluded", "figures")
        kept = ("key", "contender", "seed", "status", "scores", "cost", "error", "environment")
        data = {"schema": self.bout.schema, "bout": self.bout.to_json(), **asdict(self.summary)}
        data |= {name: getattr(self, name) for name in parts}
        data["runs"] = [{name: getattr(run, name) for name in kept} for run in self.runs]
        return {name: _plain(value) for name, value in data.items()}

    def _repr_html_(self) -> str:
        template = _templates().get_template("report.html.j2")
        return "".join(template.blocks["contenders"](template.new_context({"report": self})))

    def to_html(self, folder: Path | None = None) -> str:
        """One self-contained page; the bout's figures are read from ``folder/figures`` where `folder` is given."""
        figures = [(caption, *_figure(folder, name)) for name, caption in self.figures.items()] if folder else []
        machine = sorted({f"{name}: {text}" for run in self.runs for name, text in run.environment.items()})
        page = _templates().get_template("report.html.j2")
        plots = [_cost_quality(self), _differences(self)]
        html = page.render(report=self, figures=figures, machine=machine, plots=plots)
        return html.encode("utf-8", "replace").decode()

    def save(self, folder: Path) -> Path:
        """Write ``report.json`` and ``report.html`` into `folder`, whole or not at all; returns the page's path."""
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "report.json", json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n")
        write_atomic(folder / "report.html", self.to_html(folder))
        return folder / "report.html"


def board(reports: Sequence[Report | Mapping[str, Any]], links: Sequence[str] = ()) -> str:
    """One static page of many methods: verdicts, claims and cost, sortable and filterable; works from ``file://``.

    Parameters
    ----------
    reports : sequence of Report, or of what `Report.to_json` gave
    links : sequence of str
        Address of each report's page, relative to the board; an empty or missing one, or one of another scheme
        than http, https or file, leaves its method without a link.
    """
    entries = []
    for report, link in itertools.zip_longest(reports, links[: len(reports)], fillvalue=""):
        data: Any = report.to_json() if isinstance(report, Report) else report
        room = re.search(r"\bbakeoff\.(\w+)", data["bout"]["use"])
        safe = urlsplit(link).scheme in ("", "http", "https", "file")
        entries.append({"data": data, "room": room[1] if room else "", "link": link if safe else ""})
    page = _templates().get_template("board.html.j2").render(entries=entries)
    return page.encode("utf-8", "replace").decode()


def printable(text: str) -> str:
    """One line, safe in a terminal: control, bidirectional and unpaired characters become U+FFFD."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)


def verdict_text(versus: Comparison, method: str) -> str:
    """The verdict, so that it cannot be read the wrong way round: ``fdfi better``, ``not shown (12 seeds needed)``."""
    if versus.verdict in ("better", "worse"):
        return f"{method} {versus.verdict}"
    needed = f" ({versus.needed:,} seeds needed)" if versus.verdict == "not shown" and versus.needed else ""
    return versus.verdict + needed


def interval_texts(intervals: Sequence[Interval | None], log: bool = False, paired: bool = False) -> list[str]:
    """``mean [low, high]`` for a column, its means aligned.

    Three significant digits of the column's typical value, more where narrow intervals need them. On a log scale,
    where one column can span powers of ten, each line has its own decimals. Paired: signed, or ``x`` for ratios.
    """
    known = [i if i is not None and math.isfinite(i.mean) else None for i in intervals]
    column, texts = _decimals(known), []
    for interval in known:
        decimals = _decimals([interval]) if log else column
        text = "n/a"
        if interval:
            bounds = f" [{_fixed(interval.low, decimals)}, {_fixed(interval.high, decimals)}]"
            text = _fixed(interval.mean, decimals, ("x" if log else "+") if paired else "")
            text += "" if interval.low is None or interval.high is None else bounds
        texts.append(text)
    widest = max((len(text.split(" ")[0]) for text in texts), default=0)
    return [" " * (widest - len(text.split(" ")[0])) + text for text in texts]


def _decimals(intervals: Sequence[Interval | None]) -> int | None:
    """Decimals for a column; None where only powers of ten can show it."""
    bounds = [(i.mean, i.low, i.high) for i in intervals if i]
    sizes = [max(abs(x) for x in triple if x is not None) for triple in bounds]
    widths = [(high - low) / 2 for _, low, high in bounds if low is not None and high is not None]
    typical, width = (statistics.median([x for x in xs if 0 < x < math.inf] or [0]) for xs in (sizes, widths))
    digits = 2 - math.floor(math.log10(typical)) if typical else 2
    finer = -math.floor(math.log10(width)) if width else digits
    return max(0, digits, min(finer, digits + 2)) if -4 <= digits <= 6 else None


def _fixed(value: float | None, decimals: int | None, mark: str = "") -> str:
    if value is None or not math.isfinite(value):
        return "n/a"
    text = f"{value:.2e}" if decimals is None or abs(value) >= 1e9 else f"{value:.{decimals}f}"
    return text if mark == "+" and value < 0 else mark + text


def _sig(value: float | None) -> str:
    """Three significant digits; powers of ten from a million up and below 0.0001."""
    if value is None or not math.isfinite(value) or value == 0:
        return "0" if value == 0 else "n/a"
    if not 1e-4 <= abs(value) < 1e6:
        return f"{value:.2e}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def _size(count: float | None) -> str:
    """Bytes in decimal units."""
    if count is None or not math.isfinite(count):
        return "n/a"
    power = next((p for p in range(3) if abs(count) < 999.5 * 1000**p), 3)
    return f"{_sig(count / 1000**power)} {('B', 'kB', 'MB', 'GB')[power]}"


def _few(row: Row) -> str:
    """All values, where they are too few for an interval."""
    shown = 1 < len(row.values) < 8 and row.primary is not None and row.primary.low is None
    return f" ({', '.join(_sig(value) for value in row.values)})" if shown else ""


def _count(n: int, word: str) -> str:
    return f"{n:,} {word}{'' if n == 1 else 's'}"


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _plain(value: Any) -> Any:
    """Strict JSON: undefined numbers become None, anything else that JSON does not know its text."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, Iterable) else str(value)


def _layout(table: list[list[str]], width: int) -> list[str]:
    """Columns of text. Only titles, names and verdicts fold, and no more than the width asks for."""
    lines: list[str] = []
    for limit in (0, 17, 11):
        folds = {0: max(limit, 24), 5: limit} if limit else {}
        grid = [[_fold(cell, folds.get(j, 0)) for j, cell in enumerate(row)] for row in table[1:]]
        widths = [max((len(part) for row in grid for part in row[j]), default=1) for j in range(len(table[0]))]
        grid.insert(0, [_fold(title, widths[j] if limit else 0) for j, title in enumerate(table[0])])
        widths = [max(len(part) for row in grid for part in row[j]) for j in range(len(table[0]))]
        lines = []
        for parts in itertools.chain.from_iterable(itertools.zip_longest(*row, fillvalue="") for row in grid):
            sides = [
                part.ljust(w) if j in (0, 1, 2, 5) else part.rjust(w)
                for j, (part, w) in enumerate(zip(parts, widths, strict=True))
            ]
            lines.append("  ".join(sides).rstrip())
        if max(map(len, lines)) <= width:
            break
    return lines


def _fold(cell: str, limit: int) -> list[str]:
    return (textwrap.wrap(cell, limit, break_long_words=limit >= 24) if limit else []) or [cell]


def _templates() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined)
    templates.trim_blocks = templates.lstrip_blocks = True
    templates.filters["sha256"] = lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    templates.filters["sig"] = _sig
    return templates


def _uri(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _figure(folder: Path, name: str) -> tuple[str, str]:
    """A figure of the bout as a data URI, or why not; only files directly in ``folder/figures`` are read."""
    root, kind = (folder / "figures").resolve(), IMAGES.get(Path(name).suffix.lower())
    try:
        path = (root / name).resolve()
        if kind is None or path.parent != root:
            return "", "not a file name that ends in .svg, .png or .jpg"
        large = path.stat().st_size > MAX_FIGURE_BYTES
        return ("", f"above {_size(MAX_FIGURE_BYTES)}") if large else (_uri(kind, path.read_bytes()), "")
    except (OSError, ValueError):
        return "", "cannot be read"


def _plot(draw: Callable[[Axes], None], height: float) -> tuple[str, str]:
    """Draw once, as SVG, for a light page and, with the colours exchanged, for a dark one."""
    import matplotlib
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "bakeoff", "font.size": 9.5, "text.color": INK}
    style |= {"axes.edgecolor": FAINT, "axes.labelcolor": MUTED, "xtick.color": MUTED, "ytick.color": MUTED}
    style |= {"axes.spines.top": False, "axes.spines.right": False, "text.parse_math": False}  # a name may hold $
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of glyphs that this font lacks: the browser has its own
        figure, page = Figure(figsize=(5.4, height), layout="constrained"), io.StringIO()
        draw(figure.add_subplot())
        figure.savefig(page, format="svg", transparent=True, metadata={"Date": None})
    light = page.getvalue().replace("'DejaVu Sans'", "system-ui, 'DejaVu Sans'")
    dark = re.sub("|".join(DARK), lambda found: DARK[found[0]], light)
    return _uri(IMAGES[".svg"], light.encode()), _uri(IMAGES[".svg"], dark.encode())


def _drawable(*values: float | None) -> bool:
    return all(value is None or abs(value) < 1e100 for value in values)


def _short(name: str) -> str:
    return printable(name if len(name) <= 24 else f"{name[:23]}…")


def _cost_quality(report: Report) -> tuple[str, str]:
    """Median CPU seconds against the primary metric, the Pareto set filled and joined."""
    metric = report.bout.primary
    sign = 1 if metric.better == "higher" else -1
    rows = [(row.cost.get("cpu_s"), row.primary, row.contender) for row in report.summary.rows]
    known = [
        (max(x, 1e-3), y, name) for x, y, name in rows if x is not None and y and _drawable(x, y.mean, y.low, y.high)
    ]
    points = sorted(known, key=lambda point: (point[0], -sign * point[1].mean))
    best = list(itertools.accumulate((sign * y.mean for _, y, _ in points), max))
    pareto = [i for i in range(len(points)) if i == 0 or best[i] > best[i - 1]]

    def draw(axes: Axes) -> None:
        axes.plot([points[i][0] for i in pareto], [points[i][1].mean for i in pareto], color=FAINT, lw=1.2, zorder=1)
        for i, (x, y, name) in enumerate(points):
            color, fill = (ACCENT, ACCENT) if i in pareto else (MUTED, "none")
            axes.plot([x, x], [y.mean if y.low is None else y.low, y.mean if y.high is None else y.high], color=color)
            axes.plot(x, y.mean, "o", ms=7, mec=color, mfc=fill, mew=1.4, zorder=3)
            left = i % 2 == 1  # neighbours in cost are named on opposite sides
            place = {"xytext": (-8, 0), "ha": "right"} if left else {"xytext": (8, 0), "ha": "left"}
            axes.annotate(_short(name), (x, y.mean), textcoords="offset points", va="center_baseline", **place)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.margins(x=0.2, y=0.12)
        axes.set_xlabel("CPU seconds per run (median)")
        axes.set_ylabel(f"{_short(metric.name)} ({metric.better} is better)")

    return _plot(draw, 3.3)


def _differences(report: Report) -> tuple[str, str]:
    """Every seed's difference to every other contender, and the interval that the verdict rests on."""
    metric, method = report.bout.primary, report.method
    scores: dict[str, dict[int, float]] = {}
    for run in report.runs:
        if run.status == "ok" and metric.name in run.scores:
            scores.setdefault(run.contender, {})[run.seed] = run.scores[metric.name]
    rows = [row.versus for row in report.summary.rows if row.versus]

    def pairs(name: str) -> list[float]:
        equal = [(scores.get(method, {}).get(seed), other) for seed, other in scores.get(name, {}).items()]
        found = [(a / b if b else 0.0) if report.log else a - b for a, b in equal if a is not None]
        return [d for d in found if _drawable(d) and (d > 0 or not report.log)]

    def draw(axes: Axes) -> None:
        margin = (1 / (1 + metric.margin), 1 + metric.margin) if report.log else (-metric.margin, metric.margin)
        axes.axvspan(*margin, color=BAND, lw=0, zorder=0)
        axes.axvline(1 if report.log else 0, color=MUTED, lw=0.9, zorder=1)
        for y, versus in enumerate(rows):
            dots, mean = pairs(versus.rival), versus.difference
            axes.plot(dots, [y - 0.17] * len(dots), "o", ms=4.5, mec=MUTED, mfc="none", mew=0.9)
            if mean and _drawable(mean.mean, mean.low, mean.high):
                if mean.low is not None and mean.high is not None:
                    axes.plot([mean.low, mean.high], [y + 0.13] * 2, color=ACCENT, lw=2.2)
                axes.plot(mean.mean, y + 0.13, "o", ms=6.5, color=ACCENT)
        axes.set_yticks(range(len(rows)), [_short(versus.rival) for versus in rows], color=INK)
        axes.set_ylim(max(len(rows), 1) - 0.5, -0.5)
        if report.log:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter("{x:g}")
        side = "right" if metric.better == "higher" else "left"
        axes.set_xlabel(
            f"{_short(metric.name)}: {report.legend.split(' = ')[0]} ({side} of the line: {_short(method)} better)"
        )

    return _plot(draw, max(3.3, 1 + 0.46 * len(rows)))
