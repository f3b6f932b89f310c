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

from bakeoff.arena.stats import UNTESTED, ClaimResult, Comparison, Interval, Summary, summarise
from bakeoff.arena.store import write_atomic
from bakeoff.arena.types import Bout, Metric, Run, to_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, MUTED, FAINT, ACCENT, BAND = "#1c2024", "#62686f", "#c9ced3", "#1f5f99", "#eceff2"  # the plots' colours
IMAGES = {".svg": "image/svg+xml", ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}


@dataclass
class Report:
    """What a bout found; a function of its runs alone. ``print(report)`` shows `table`, a notebook the HTML table.

    Parameters
    ----------
    bout, runs, summary : Bout, list of Run, Summary
    figures : dict of str to str
        The bout's own figures: file name inside ``figures/`` of the report's folder -> caption. One that is missing,
        above 400 kB or neither SVG, PNG nor JPEG is named in the page but not embedded.
    page : Path, optional
        Where `save` has written it.
    """

    bout: Bout
    runs: list[Run]
    summary: Summary
    figures: dict[str, str] = field(default_factory=dict)
    page: Path | None = None

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
    def setting(self) -> str:
        """Seeds, contenders, primary metric, direction and margin in one line."""
        metric, n, k = self.bout.primary, len(self.bout.seeds), len(self.summary.rows)
        margin = f"{100 * metric.margin:g} %" if metric.scale == "log" else f"{metric.margin:g} {metric.unit}".strip()
        who = f"{n} seed{'s' * (n != 1)}, {k} contender{'s' * (k != 1)}"
        return f"{who}, primary: {metric.name} ({metric.better} is better), margin {margin}"

    @property
    def warning(self) -> str:
        """Line 1 of every report whose floor is not beaten, or whose method has no result; else empty."""
        if not any(row.contender == self.method and row.primary for row in self.summary.rows):
            return f"{self.method} has no result: no run of it ended ok."
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
        floor = {True: above, False: "", None: " Whether it beats the floor cannot be told."}[self.summary.floor_beaten]
        return f"On {self.bout.primary.name}, {self.method} is {told or 'without a rival to compare with'}.{floor}"

    @property
    def legend(self) -> str:
        """How to read the difference, the wins and the verdict."""
        units = sorted({f"{row.versus.unit}s" for row in self.summary.rows if row.versus}) or ["seeds"]
        kind, by = ("ratio", "divided by") if self.bout.primary.scale == "log" else ("difference", "minus")
        same = f"{kind} = {self.method} {by} the contender on the same {' or '.join(units)}"
        return f"{same}; wins = wins-ties-losses of {self.method}; the verdict is on {self.method}."

    @property
    def header(self) -> list[str]:
        """Column titles, the same for every method; no-break spaces keep units together where a title folds."""
        metric = self.bout.primary
        score = f"{metric.name} ({metric.unit})" if metric.unit else metric.name
        vs = f"vs {self.method}: {'ratio' if metric.scale == 'log' else 'difference'} [95\xa0%]"
        return ["contender", f"{score} [95\xa0%]", vs, "wins", "p(Holm)", "verdict", "CPU\xa0s", "peak\xa0MB", "size"]

    @property
    def cells(self) -> list[list[str]]:
        """The table as text: one list per contender, in the order of `header`."""
        rows, log, table = self.summary.rows, self.bout.primary.scale == "log", []
        scores = interval_texts([row.primary for row in rows], log)
        paired = interval_texts([row.versus.difference if row.versus else None for row in rows], log, paired=True)
        for row, score, difference in zip(rows, scores, paired, strict=True):
            told = ["-"] * 4
            if v := row.versus:
                p = "n/a" if v.p_holm is None else "<0.001" if v.p_holm < 5e-4 else f"{v.p_holm:.3f}"
                told = [difference, f"{v.wins}-{v.ties}-{v.losses}", p, verdict_text(v, self.method)]
            few = row.primary and row.primary.low is None and len(row.values) > 1
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
        for run in [run for run in self.runs if run.status != "ok"]:
            first = next(filter(None, map(str.strip, run.error.splitlines())), "no message")
            groups.setdefault(f"{run.contender} {run.status}: {first[:200]}", []).append(str(run.seed))
        absent = [f"not applicable: {name} ({why})" for name, why in self.bout.absent.items()]
        return absent + [f"not ok: {what} (seed {', '.join(seeds)})" for what, seeds in groups.items()]

    def claim_numbers(self, result: ClaimResult) -> str:
        """What a claim's verdict rests on, or why it has none and what would decide it."""
        claim, value, name = result.claim, result.value, result.claim.metric or self.bout.primary.name
        log = claim.rival != "" and any(m.name == name and m.scale == "log" for m in self.bout.metrics)
        number = f"{interval_texts([value], log, paired=claim.rival != '')[0]} (n = {value.n})" if value else ""
        return "; ".join(filter(None, (number, result.why, claim.command and f"decide it with: {claim.command}")))

    @property
    def notes(self) -> list[str]:
        """What the reader must know besides the numbers."""
        exploratory = ", ".join(dict.fromkeys(name for row in self.summary.rows for name in row.exploratory))
        more = {"exploratory, in the report, without verdict": exploratory, "scale": self.bout.scale}
        told = [f"{name}: {text}" for name, text in more.items() if text]
        return list(dict.fromkeys([*self.summary.notes, *self.bout.notes, *told]))

    def table(self, width: int | None = None) -> str:
        """The one-screen report, safe in a terminal; words fold to `width` (the terminal's, or 110), numbers never."""
        width = max(width or shutil.get_terminal_size((110, 24)).columns, 60)
        wrap = textwrap.TextWrapper(width, subsequent_indent="  ").wrap
        lines = [self.warning] if self.warning else []
        lines += wrap(f"{self.bout.method}: {self.bout.title}. {self.setting}")
        lines += ["", *_layout([self.header, *self.cells], width), "", *wrap(self.legend)]
        lines += [part for line in self.excluded for part in wrap(line)]
        lines += ["", "claims of the paper, as measured here"] if self.summary.claims else []
        told = [(r.verdict, r.claim.text, self.claim_numbers(r)) for r in self.summary.claims if r.why != UNTESTED]
        if n := len(self.summary.claims) - len(told):
            told.append(("not tested", f"{n} claim{'s' * (n != 1)} with experiments of their own", UNTESTED))
        for verdict, claim, numbers in told:
            text = f"  {verdict:18}  {' | '.join(filter(None, (claim, numbers)))}"
            lines += textwrap.wrap(text, width, subsequent_indent=" " * 22)
        lines += ["", *(part for line in [*self.notes, f"Use it: {self.bout.use}"] for part in wrap(line))]
        return "\n".join(map(printable, lines))

    __str__ = table

    def to_json(self) -> dict[str, Any]:
        """The same numbers as data, and every run's scores; what strict JSON cannot hold is None or text."""
        kept = ("key", "contender", "seed", "status", "scores", "cost", "error", "environment")
        data = {"schema": self.bout.schema, "bout": to_json(self.bout), **asdict(self.summary)}
        data |= {name: getattr(self, name) for name in ("headline", "warning", "legend", "excluded", "figures")}
        data["runs"] = [{name: getattr(run, name) for name in kept} for run in self.runs]
        return dict(json.loads(json.dumps(data, default=str), parse_constant=lambda _: None))

    def _repr_html_(self) -> str:
        return _render("report.html.j2", {"report": self}, "contenders")

    def to_html(self, folder: Path | None = None) -> str:
        """One self-contained page; the bout's figures are read from ``folder/figures`` where `folder` is given."""
        figures = [(caption, *_figure(folder, name)) for name, caption in self.figures.items()] if folder else []
        machine = sorted({f"{name}: {text}" for run in self.runs for name, text in run.environment.items()})
        plots = [_plot(draw, self) for draw in (_cost_quality, _differences)]
        return _render("report.html.j2", {"report": self, "figures": figures, "machine": machine, "plots": plots})

    def save(self, folder: Path) -> Path:
        """Write ``report.json`` and ``report.html`` into `folder`, whole or not at all; returns the page's path."""
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "report.json", json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n")
        write_atomic(folder / "report.html", self.to_html(folder))
        return folder / "report.html"


def board(reports: Sequence[Report | Mapping[str, Any]], links: Sequence[str] = ()) -> str:
    """One static page of many reports or what their `to_json` gave; ``links`` lead to their pages, in this order."""
    entries = []
    for report, link in itertools.zip_longest(reports, links[: len(reports)], fillvalue=""):
        data: Any = report.to_json() if isinstance(report, Report) else report
        room = re.search(r"\bbakeoff\.(\w+)", data["bout"]["use"])
        link = link if urlsplit(link).scheme in ("", "http", "https") else ""
        entries.append({"data": data, "room": room[1] if room else "", "link": link})
    return _render("board.html.j2", {"entries": entries})


def printable(text: str, longest: int | None = None) -> str:
    """One line, safe in a terminal: control, bidirectional and unpaired characters become U+FFFD."""
    text = text if longest is None or len(text) <= longest else f"{text[: longest - 1]}…"
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)


def verdict_text(versus: Comparison, method: str) -> str:
    """The verdict, so that it cannot be read the wrong way round: ``fdfi better``, ``not shown (12 seeds needed)``."""
    needed = f" ({versus.needed:,} seeds needed)" if versus.verdict == "not shown" and versus.needed else ""
    return f"{method} {versus.verdict}" if versus.verdict in ("better", "worse") else versus.verdict + needed


def interval_texts(intervals: Sequence[Interval | None], log: bool = False, paired: bool = False) -> list[str]:
    """``mean [low, high]`` for a column, its means aligned; paired: signed, or ``x`` for ratios."""
    mark = ("x" if log else "+") if paired else ""
    rows = [(i, _decimals([i] if log else intervals)) for i in intervals]  # ratios can span powers of ten
    means = ["n/a" if i is None else _fixed(i.mean, d, mark) for i, d in rows]
    ends = [f" [{_fixed(i.low, d)}, {_fixed(i.high, d)}]" if i and None not in (i.low, i.high) else "" for i, d in rows]
    widest = max(map(len, means), default=0)
    return [f"{mean:>{widest}}{bounds}" for mean, bounds in zip(means, ends, strict=True)]


def _decimals(intervals: Sequence[Interval | None]) -> int | None:
    """For three digits of the typical value, more where narrow intervals need it; None: only powers of ten will do."""
    bounds = [(i.mean, i.low, i.high) for i in intervals if i]
    sizes = [max(abs(x) for x in triple if x is not None) for triple in bounds]
    widths = [(high - low) / 2 for _, low, high in bounds if low is not None and high is not None]
    typical, width = (statistics.median([x for x in xs if 0 < x < math.inf] or [0]) for xs in (sizes, widths))
    digits = 2 - math.floor(math.log10(typical)) if typical else 2
    finer = -math.floor(math.log10(width)) if width else digits
    return max(0, digits, min(finer, digits + 2)) if -4 <= digits <= 6 else None


def _fixed(value: float | None, decimals: int | None, mark: str = "") -> str:
    """``mark``: ``+`` for a sign, ``,`` between thousands, ``x`` before a ratio; without decimals, powers of ten."""
    if value is None or not math.isfinite(value):
        return "n/a"
    kind = ".2e" if decimals is None or abs(value) >= 1e9 else f".{decimals}f"
    return f"x{value:{kind}}" if mark == "x" else f"{value:{mark}{kind}}"


def _sig(value: float | None) -> str:
    """Three significant digits; powers of ten from a million up and below 0.0001."""
    digits = 2 - math.floor(math.log10(abs(value))) if value and math.isfinite(value) else 0
    return _fixed(0.0 if value == 0 else value, max(digits, 0) if -4 < digits < 7 else None, ",")


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
    forms = [f"{side}{w}" for side, w in zip("<<<>><>>>", widths, strict=True)]
    lines = [parts for row in (titles, *wrapped) for parts in itertools.zip_longest(*row, fillvalue="")]
    return ["  ".join(map(format, parts, forms)).rstrip() for parts in lines]


def _render(name: str, names: dict[str, Any], block: str = "") -> str:
    """A template, or one block of it, filled in; unpaired surrogates, which no file can hold, become question marks."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined)
    templates.trim_blocks = templates.lstrip_blocks = True
    templates.filters["sha256"] = lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    templates.filters["sig"] = _sig
    template = templates.get_template(name)
    draw = template.blocks[block] if block else template.root_render_func
    return "".join(draw(template.new_context(names))).encode("utf-8", "replace").decode()


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


def _plot(draw: Callable[[Report, Axes], None], report: Report) -> str:
    """Draw as SVG, for a light page; a dark one inverts it."""
    from matplotlib import figure, rc_context

    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "bakeoff", "font.size": 9.5, "text.color": INK}
    style |= {"axes.edgecolor": FAINT, "axes.labelcolor": MUTED, "xtick.color": MUTED, "ytick.color": MUTED}
    style |= {"axes.spines.top": False, "axes.spines.right": False, "text.parse_math": False}  # a name may hold $
    height = max(3.3, 1 + 0.46 * len(report.summary.rows))
    with rc_context(style), warnings.catch_warnings(action="ignore"):  # of glyphs it lacks: browsers have their own
        drawing, page = figure.Figure(figsize=(5.4, height), layout="constrained"), io.StringIO()
        axes = drawing.add_subplot()
        draw(report, axes)
        if axes.get_xscale() == "log":
            axes.xaxis.set(major_formatter="{x:g}", minor_formatter="")
        drawing.savefig(page, format="svg", transparent=True, metadata={"Date": None})
    return _uri(IMAGES[".svg"], page.getvalue().replace("'DejaVu Sans'", "system-ui, 'DejaVu Sans'").encode())


def _ends(interval: Interval | None) -> list[float]:
    """The mean, then the bounds; nothing where a plot cannot show them."""
    known = [x for x in (interval.mean, interval.low, interval.high) if x is not None] if interval else []
    return known if all(abs(x) < 1e100 for x in known) else []


def _cost_quality(report: Report, axes: Axes) -> None:
    """Median CPU seconds against the primary metric, the Pareto set filled and joined by its staircase."""
    metric, sign = report.bout.primary, 1 if report.bout.primary.better == "higher" else -1
    rows = [(row.cost.get("cpu_s", -1.0), _ends(row.primary), row.contender) for row in report.summary.rows]
    known = [(max(x, 1e-3), ends, name) for x, ends, name in rows if 0 <= x < 1e100 and ends]
    pareto: list[tuple[float, float]] = []
    for x, ends, name in sorted(known, key=lambda point: (point[0], -sign * point[1][0])):
        best = not pareto or sign * ends[0] > sign * pareto[-1][1]
        pareto += [(x, ends[0])] if best else []
        color, fill, side, turn = (ACCENT, ACCENT, "right", 1) if best else (MUTED, "none", "left", -1)
        axes.plot([x] * len(ends), ends, "-o", markevery=3, ms=7, color=color, mfc=fill, mew=1.4, zorder=3)
        # No point can be on the cheaper and better side of a Pareto point: room for its name.
        offset, up = (-6 * turn, 4 * turn * sign), "bottom" if turn == sign else "top"
        axes.annotate(printable(name, 24), (x, ends[0]), offset, textcoords="offset points", ha=side, va=up)
    axes.step([x for x, _ in pareto], [y for _, y in pareto], where="post", color=FAINT, lw=1.2, zorder=1)
    axes.set(xscale="log", xmargin=0.2, ymargin=0.12, xlabel="CPU seconds per run (median)")
    axes.set_ylabel(f"{printable(metric.name, 24)} ({metric.better} is better)")


def _differences(report: Report, axes: Axes) -> None:
    """Every seed's difference to every other contender, and the interval that the verdict rests on."""
    metric, method, log = report.bout.primary, report.method, report.bout.primary.scale == "log"
    scores = {(r.contender, r.seed): r.scores[metric.name] for r in report.runs if metric.name in r.scores}
    rows = [row.versus for row in report.summary.rows if row.versus]
    axes.axvspan(1 / (1 + metric.margin) if log else -metric.margin, log + metric.margin, color=BAND, lw=0)
    axes.axvline(int(log), color=MUTED, lw=0.9)
    for y, versus in enumerate(rows):
        pairs = [(scores[method, s], b) for (c, s), b in scores.items() if c == versus.rival and (method, s) in scores]
        found = [a / b for a, b in pairs if min(a, b) > 0] if log else [a - b for a, b in pairs]
        dots, ends = [x for x in found if abs(x) < 1e100], _ends(versus.difference)
        axes.plot(dots, [y - 0.17] * len(dots), "o", ms=4.5, mec=MUTED, mfc="none", mew=0.9)
        axes.plot(ends, [y + 0.13] * len(ends), "-o", markevery=3, ms=6.5, color=ACCENT, lw=2.2)
    axes.set_yticks(range(len(rows)), [printable(versus.rival, 24) for versus in rows], color=INK)
    axes.set(ylim=(max(len(rows), 1) - 0.5, -0.5), xscale="log" if log else "linear")
    side = f"{'right' if metric.better == 'higher' else 'left'} of the line: {printable(method, 24)} better"
    axes.set_xlabel(f"{printable(metric.name, 24)}: {'ratio' if log else 'difference'} ({side})")
