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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bakeoff.arena.stats import MIN_SEEDS, ClaimResult, Comparison, Interval, Summary, summarise
from bakeoff.arena.store import write_atomic
from bakeoff.arena.types import Bout, Metric, Run

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.axes import Axes

INK, MUTED, FAINT, ACCENT, BAND = "#1c2024", "#62686f", "#c9ced3", "#1f5f99", "#eceff2"
DARK = {INK: "#e8eaed", MUTED: "#9aa2ab", FAINT: "#444c55", ACCENT: "#7fb5e6", BAND: "#262c33"}
"""The colours of the plots, and what each becomes on a dark page."""

COLUMNS = ("wins", "p(Holm)", "verdict", "CPU\xa0s", "peak\xa0MB", "size")
IMAGES = {".svg": "image/svg+xml", ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}


@dataclass
class Report:
    """What a bout found; a function of its runs alone. ``print(report)`` shows `table`, a notebook the HTML table.

    Parameters
    ----------
    bout, runs, summary : Bout, list of Run, Summary
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
        """Summarise the runs of a bout, the last one of each contender and seed; runs nothing, imports no method."""
        runs = list({(run.contender, run.seed): run for run in runs}.values())
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
        metric, n, k = self.bout.primary, len(self.bout.seeds), len(self.summary.rows)
        margin = f"{100 * metric.margin:g} %" if self.log else f"{metric.margin:g} {metric.unit}".strip()
        who = f"{n} seed{'s' * (n != 1)}, {k} contender{'s' * (k != 1)}"
        return f"{who}, primary: {metric.name} ({metric.better} is better), margin {margin}"

    @property
    def warning(self) -> str:
        """Line 1 of every report whose floor is not beaten; else empty."""
        floors = [row.versus for row in self.summary.rows if row.role == "floor" and row.versus]
        told = [f"against {v.rival}: {verdict_text(v, self.method)}" for v in floors if v.verdict != "better"]
        return f"The floor is not beaten ({', '.join(told)})." if self.summary.floor_beaten is False else ""

    @property
    def headline(self) -> str:
        """The verdicts in one or two sentences."""
        words = {"better": "better than", "worse": "worse than", "practically equal": "practically equal to"}
        words |= {"not shown": "not shown to be better or worse than", "too few runs": "not comparable yet with"}
        rivals = [row.versus for row in self.summary.rows if row.versus and row.role != "floor"]
        found = {word: ", ".join(v.rival for v in rivals if v.verdict == verdict) for verdict, word in words.items()}
        told = "; ".join(f"{word} {names}" for word, names in found.items() if names)
        shown = all(row.versus.verdict == "better" for row in self.summary.rows if row.versus and row.role == "floor")
        above = " It beats the floor." if shown else " Its mean is better than the floor's, by less than can be shown."
        floor = {True: above, False: "", None: " Whether it beats the floor cannot be told."}
        where = f"On {self.bout.primary.name}, {self.method} is"
        return f"{where} {told or 'without a rival to compare with'}.{floor[self.summary.floor_beaten]}"

    @property
    def legend(self) -> str:
        """How to read the difference, the wins and the verdict."""
        units = sorted({f"{row.versus.unit}s" for row in self.summary.rows if row.versus}) or ["seeds"]
        kind = f"ratio = {self.method} divided by" if self.log else f"difference = {self.method} minus"
        same = f"{kind} the contender on the same {' or '.join(units)}"
        return f"{same}; wins = wins-ties-losses of {self.method}; the verdict is on {self.method}."

    @property
    def header(self) -> list[str]:
        """Column titles, the same for every method; no-break spaces keep units together where a title folds."""
        metric = self.bout.primary
        score = f"{metric.name} ({metric.unit})" if metric.unit else metric.name
        versus = f"vs {self.method}: {'ratio' if self.log else 'difference'} [95\xa0%]"
        return ["contender", f"{score} [95\xa0%]", versus, *COLUMNS]

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
            few = 1 < len(row.values) < MIN_SEEDS and row.primary is not None and row.primary.low is None
            score += f" ({', '.join(map(_sig, row.values))})" if few else ""
            cost = [_sig(row.cost.get("cpu_s")), _sig(row.cost.get("peak_mb")), _size(row.cost.get("artefact_bytes"))]
            table.append([row.contender, score, *told, *cost])
        return table

    def column(self, metric: Metric) -> list[str]:
        """An exploratory metric as text, in the order of the rows."""
        return interval_texts([row.exploratory.get(metric.name) for row in self.summary.rows], metric.scale == "log")

    @property
    def excluded(self) -> list[str]:
        """Contenders that do not apply and runs that did not end ok, with the first line of the error."""
        groups: dict[str, list[str]] = {}
        for run in self.runs:
            if run.status != "ok":
                first = next(filter(None, map(str.strip, run.error.splitlines())), "no message")
                groups.setdefault(f"{run.contender} {run.status}: {first[:200]}", []).append(str(run.seed))
        absent = [f"not applicable: {name} ({why})" for name, why in self.bout.absent.items()]
        return absent + [f"not ok: {what} (seed {', '.join(seeds)})" for what, seeds in groups.items()]

    def claim_numbers(self, result: ClaimResult) -> str:
        """What a claim's verdict rests on, or why it has none and what would decide it."""
        claim, number = result.claim, ""
        if result.value is not None:
            name = claim.metric or self.bout.primary.name
            log = any(m.name == name and m.scale == "log" for m in self.bout.metrics) and claim.rival != ""
            number = interval_texts([result.value], log=log, paired=claim.rival != "")[0] + f" (n = {result.value.n})"
        command = f"decide it with: {claim.command}" if claim.command else ""
        return "; ".join(filter(None, (number, result.why, command)))

    @property
    def notes(self) -> list[str]:
        """What the reader must know besides the numbers."""
        exploratory = ", ".join(m.name for m in self.bout.metrics if not m.primary)
        more = {"exploratory, in the report, without verdict": exploratory, "scale": self.bout.scale}
        told = [f"{name}: {text}" for name, text in more.items() if text]
        return list(dict.fromkeys([*self.summary.notes, *self.bout.notes, *told]))

    def table(self, width: int | None = None) -> str:
        """The one-screen report in plain text, safe to print whatever the names hold.

        ``width`` is in columns: by default the terminal's, 110 where there is none. Words fold where the table
        would be wider; numbers are never cut.
        """
        width = max(width or shutil.get_terminal_size((110, 24)).columns, 60)
        wrap = partial(textwrap.wrap, width=width, subsequent_indent="  ")
        lines = [self.warning] if self.warning else []
        lines += wrap(f"{self.bout.method}: {self.bout.title}. {self.setting}")
        lines += ["", *_layout([self.header, *self.cells], width), "", *wrap(self.legend)]
        lines += [part for line in self.excluded for part in wrap(line)]
        lines += ["", "claims of the paper, as measured here"] if self.summary.claims else []
        for result in self.summary.claims:
            text = " | ".join(filter(None, (result.claim.text, self.claim_numbers(result))))
            lines += textwrap.wrap(f"  {result.verdict:18}  {text}", width, subsequent_indent=" " * 22)
        lines += ["", *(part for line in [*self.notes, f"Use it: {self.bout.use}"] for part in wrap(line))]
        return "\n".join(map(printable, lines))

    __str__ = table

    def to_json(self) -> dict[str, Any]:
        """The same numbers as data, and every run's scores; strict JSON: undefined numbers are None."""
        parts = ("headline", "warning", "legend", "excluded", "figures")
        kept = ("key", "contender", "seed", "status", "scores", "cost", "error", "environment")
        data = {"schema": self.bout.schema, "bout": self.bout.to_json(), **asdict(self.summary)}
        data |= {name: getattr(self, name) for name in parts}
        data["runs"] = [{name: getattr(run, name) for name in kept} for run in self.runs]
        # What JSON cannot hold becomes None (not finite) or its text.
        return dict(json.loads(json.dumps(data, default=str), parse_constant=lambda _: None))

    def _repr_html_(self) -> str:
        template = _templates().get_template("report.html.j2")
        return "".join(template.blocks["contenders"](template.new_context({"report": self})))

    def to_html(self, folder: Path | None = None) -> str:
        """One self-contained page; the bout's figures are read from ``folder/figures`` where `folder` is given."""
        figures = [(caption, *_figure(folder, name)) for name, caption in self.figures.items()] if folder else []
        machine = sorted({f"{name}: {text}" for run in self.runs for name, text in run.environment.items()})
        plots = [_plot(draw, self) for draw in (_cost_quality, _differences)]
        page = _templates().get_template("report.html.j2")
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

    ``reports`` are reports or what `Report.to_json` gave; ``links`` the addresses of their pages in the same order,
    relative to the board or http(s). A method without one gets no link.
    """
    entries = []
    for report, link in itertools.zip_longest(reports, links[: len(reports)], fillvalue=""):
        data: Any = report.to_json() if isinstance(report, Report) else report
        room = re.search(r"\bbakeoff\.(\w+)", data["bout"]["use"])
        link = link if urlsplit(link).scheme in ("", "http", "https") else ""
        entries.append({"data": data, "room": room[1] if room else "", "link": link})
    return _templates().get_template("board.html.j2").render(entries=entries).encode("utf-8", "replace").decode()


def printable(text: str, longest: int | None = None) -> str:
    """One line, safe in a terminal: control, bidirectional and unpaired characters become U+FFFD."""
    text = text if longest is None or len(text) <= longest else f"{text[: longest - 1]}…"
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
    texts, column = [], _decimals([i for i in intervals if i])
    for interval in intervals:
        text = "n/a"
        if interval:
            decimals = _decimals([interval]) if log else column
            text = _fixed(interval.mean, decimals, ("x" if log else "+") if paired else "")
            if interval.low is not None and interval.high is not None:
                text += f" [{_fixed(interval.low, decimals)}, {_fixed(interval.high, decimals)}]"
        texts.append(text)
    widest = max((len(text.split(" ")[0]) for text in texts), default=0)
    return [" " * (widest - len(text.split(" ")[0])) + text for text in texts]


def _decimals(intervals: Sequence[Interval]) -> int | None:
    """Decimals for a column; None where only powers of ten can show it."""
    bounds = [(i.mean, i.low, i.high) for i in intervals]
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
    if value is None or not math.isfinite(value):
        return "n/a"
    if value and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.2e}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}" if value else "0"


def _size(count: float | None) -> str:
    """Bytes in decimal units."""
    if count is None or not 0 <= count < math.inf:
        return "n/a"
    power = next((p for p in range(3) if count < 999.5 * 1000**p), 3)
    return f"{_sig(count / 1000**power)} {('B', 'kB', 'MB', 'GB')[power]}"


def _layout(table: list[list[str]], width: int) -> list[str]:
    """Columns of text. Only titles, names and verdicts fold, and no more than the width asks for."""
    wrap = partial(textwrap.wrap, break_long_words=False)
    for limit in (1_000_000, 17, 11):
        folds = {0: max(limit, 24), 5: limit}
        wrapped = [[wrap(cell, folds.get(j, 1_000_000)) for j, cell in enumerate(row)] for row in table[1:]]
        widths = [max((len(part) for row in wrapped for part in row[j]), default=1) for j in range(len(table[0]))]
        titles = [wrap(title, max(w, limit // 1000)) for title, w in zip(table[0], widths, strict=True)]
        widths = [max(w, *map(len, title)) for w, title in zip(widths, titles, strict=True)]
        if sum(widths) + 2 * len(widths) - 2 <= width:
            break
    rows = [itertools.zip_longest(*row, fillvalue="") for row in (titles, *wrapped)]
    lines = [zip(parts, "<<<>><>>>", widths, strict=True) for parts in itertools.chain.from_iterable(rows)]
    return ["  ".join(f"{part:{side}{w}}" for part, side, w in line).rstrip() for line in lines]


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
        return (_uri(kind, path.read_bytes()), "") if path.stat().st_size <= 400_000 else ("", "above 400 kB")
    except (OSError, ValueError):
        return "", "cannot be read"


def _plot(draw: Callable[[Report, Axes], None], report: Report) -> tuple[str, str]:
    """Draw once, as SVG, for a light page and, with the colours exchanged, for a dark one."""
    import matplotlib
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "bakeoff", "font.size": 9.5, "text.color": INK}
    style |= {"axes.edgecolor": FAINT, "axes.labelcolor": MUTED, "xtick.color": MUTED, "ytick.color": MUTED}
    style |= {"axes.spines.top": False, "axes.spines.right": False, "text.parse_math": False}  # a name may hold $
    height = max(3.3, 1 + 0.46 * len(report.summary.rows))
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of glyphs that this font lacks: the browser has its own
        figure, page = Figure(figsize=(5.4, height), layout="constrained"), io.StringIO()
        axes = figure.add_subplot()
        draw(report, axes)
        if axes.get_xscale() == "log":
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter("")
        figure.savefig(page, format="svg", transparent=True, metadata={"Date": None})
    light = page.getvalue().replace("'DejaVu Sans'", "system-ui, 'DejaVu Sans'")
    dark = re.sub("|".join(DARK), lambda found: DARK[found[0]], light)
    return _uri(IMAGES[".svg"], light.encode()), _uri(IMAGES[".svg"], dark.encode())


def _drawable(*values: float | None) -> bool:
    return all(value is None or abs(value) < 1e100 for value in values)


def _cost_quality(report: Report, axes: Axes) -> None:
    """Median CPU seconds against the primary metric, the Pareto set filled and joined by its staircase."""
    metric, sign = report.bout.primary, 1 if report.bout.primary.better == "higher" else -1
    rows = [(row.cost.get("cpu_s", -1.0), row.primary, row.contender) for row in report.summary.rows]
    known = [(max(x, 1e-3), y, name) for x, y, name in rows if x >= 0 and y and _drawable(x, y.mean, y.low, y.high)]
    points = sorted(known, key=lambda point: (point[0], -sign * point[1].mean))
    pareto: list[tuple[float, float]] = []
    for x, y, name in points:
        best = not pareto or sign * y.mean > sign * pareto[-1][1]
        pareto += [(x, y.mean)] if best else []
        color, fill = (ACCENT, ACCENT) if best else (MUTED, "none")
        axes.plot([x, x], [y.mean if y.low is None else y.low, y.mean if y.high is None else y.high], color=color)
        axes.plot(x, y.mean, "o", ms=7, mec=color, mfc=fill, mew=1.4, zorder=3)
        # No point can be on the cheaper and better side of a Pareto point: room for its name.
        side, offset = ("right", (-6, 4 * sign)) if best else ("left", (6, -4 * sign))
        up = "bottom" if offset[1] > 0 else "top"
        axes.annotate(printable(name, 24), (x, y.mean), offset, textcoords="offset points", ha=side, va=up)
    axes.step([x for x, _ in pareto], [y for _, y in pareto], where="post", color=FAINT, lw=1.2, zorder=1)
    axes.set_xscale("log")
    axes.margins(x=0.2, y=0.12)
    axes.set_xlabel("CPU seconds per run (median)")
    axes.set_ylabel(f"{printable(metric.name, 24)} ({metric.better} is better)")


def _differences(report: Report, axes: Axes) -> None:
    """Every seed's difference to every other contender, and the interval that the verdict rests on."""
    metric, method, log = report.bout.primary, report.method, report.log
    scores = {(r.contender, r.seed): r.scores[metric.name] for r in report.runs if metric.name in r.scores}
    rows = [row.versus for row in report.summary.rows if row.versus]
    axes.axvspan(1 / (1 + metric.margin) if log else -metric.margin, log + metric.margin, color=BAND, lw=0)
    axes.axvline(int(log), color=MUTED, lw=0.9)
    for y, versus in enumerate(rows):
        pairs = [(scores[method, s], b) for (c, s), b in scores.items() if c == versus.rival and (method, s) in scores]
        found = [a / b for a, b in pairs if min(a, b) > 0] if log else [a - b for a, b in pairs]
        dots, mean = list(filter(_drawable, found)), versus.difference
        axes.plot(dots, [y - 0.17] * len(dots), "o", ms=4.5, mec=MUTED, mfc="none", mew=0.9)
        if mean and _drawable(mean.mean, mean.low, mean.high):
            bounds = [x for x in (mean.low, mean.high) if x is not None]
            axes.plot(bounds, [y + 0.13] * len(bounds), color=ACCENT, lw=2.2)
            axes.plot(mean.mean, y + 0.13, "o", ms=6.5, color=ACCENT)
    axes.set_yticks(range(len(rows)), [printable(versus.rival, 24) for versus in rows], color=INK)
    axes.set_ylim(max(len(rows), 1) - 0.5, -0.5)
    axes.set_xscale("log" if log else "linear")
    side = f"{'right' if metric.better == 'higher' else 'left'} of the line: {printable(method, 24)} better"
    axes.set_xlabel(f"{printable(metric.name, 24)}: {'ratio' if log else 'difference'} ({side})")
