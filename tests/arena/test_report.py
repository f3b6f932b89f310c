"""The report says what the summary says, whatever the summary says, in a terminal, as data and as a page."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import random
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bakeoff.arena.report import Report, _cost_quality, board, interval_texts, printable, verdict_text
from bakeoff.arena.stats import ClaimResult, Comparison, Interval, Row, Summary
from bakeoff.arena.types import Bout, Claim, Contender, Metric, Run, from_json

ATTACKS = (
    "<script>window.hacked=1</script>",
    '"><img src=x onerror=window.hacked=1>',
    "'><svg onload=window.hacked=1>",
    "</script><script>window.hacked=1</script>",
    "</style><script>window.hacked=1</script>",
    "<iframe srcdoc='<script>parent.hacked=1</script>'>",
    "javascript:window.hacked=1",
    "{{ 7 * 191 }}{% for x in () %}",
    "<a href=javascript:window.hacked=1>x</a> onmouseover=window.hacked=1 ",
    "</details></table>--><!--<meta http-equiv=refresh content=0;url=data:text/html,x>",
)


def make_bout(names: tuple[str, ...] = ("ours", "plain", "slow", "noisy", "chance"), **changes: object) -> Bout:
    """A bout of one paper's contender, rivals, and a floor that comes last."""
    roles = ["paper"] + ["rival"] * (len(names) - 2) + ["floor"]
    bout = Bout(
        method="ours",
        title="A title",
        paper="Author et al., 2026",
        job="Does a job",
        use="from bakeoff.explain import Ours",
        scale="200 rows",
        metrics=(Metric("AUC", "higher", primary=True, margin=0.01), Metric("seconds", "lower", "s", scale="log")),
        claims=(
            Claim("It beats plain.", "a gain above 0", "Table 1", "AUC", names[0], names[1]),
            Claim(
                "It scales.",
                "no slower at ten times the rows",
                "Figure 2",
                status="not decidable here",
                command="run-it",
            ),
        ),
        contenders=tuple(Contender(name, role) for name, role in zip(names, roles, strict=True)),  # type: ignore[arg-type]
        seeds=tuple(range(8)),
        options={"table": "diabetes"},
        command="bakeoff run ours",
    )
    return replace(bout, **changes)  # type: ignore[arg-type]


def make_runs(bout: Bout, means: tuple[float, ...] = (0.83, 0.78, 0.828, 0.81, 0.5), seed: int = 0) -> list[Run]:
    """Runs whose seeds share an effect; cost grows with the contender's position."""
    draw, runs = random.Random(seed), []
    for number in bout.seeds:
        shared = draw.gauss(0, 0.02)
        for position, contender in enumerate(bout.contenders):
            score = means[position % len(means)] + shared + draw.gauss(0, 0.005)
            cost = {"cpu_s": 40.0 / 3**position * draw.uniform(0.9, 1.1), "peak_mb": 100.0 + position, "wall_s": 1.0}
            scores = {"AUC": score, "seconds": 2.0 + position + draw.random()}
            key, machine = f"{number}-{position}", {"python": "3.11", "cores": "2"}
            runs.append(
                Run(key, "ours", contender.name, number, {}, "i", "c", "ok", scores, cost=cost, environment=machine)
            )
    return runs


def example(**changes: object) -> Report:
    """A whole report by the real statistics, with one failed and one timed-out run."""
    bout = make_bout(**changes)  # type: ignore[arg-type]
    runs = make_runs(bout)
    name = bout.contenders[3].name
    for run in runs:
        if run.contender == name and run.seed in (2, 5):
            run.status, run.error = "failed", "LinAlgError: singular covariance\nlast line printed"
            run.scores, run.cost = {}, {}
    return Report.build(replace(bout, absent={"boosted": "needs xgboost"}), runs)


def compared(name: str, verdict: str, low: float, mean: float, high: float, needed: int | None = None) -> Comparison:
    return Comparison(name, "seed", Interval(mean, low, high, 8), 7, 0, 1, 0.0078, 0.0156, verdict, needed)  # type: ignore[arg-type]


def small(floor: str = "better", scale: str = "linear") -> Report:
    """A report with a summary written by hand."""
    metrics = (Metric("AUC", "higher", primary=True, margin=0.01, scale=scale),)  # type: ignore[arg-type]
    bout = make_bout(("ours", "plain", "chance"), metrics=metrics, claims=())
    cost = {"cpu_s": 41.234, "peak_mb": 310.0, "artefact_bytes": 1_234_567.0}
    ours = Row("ours", "paper", Interval(0.8312, 0.8201, 0.8423, 8), {}, [0.83] * 8, 8, {"ok": 8}, cost)
    plain = Row("plain", "rival", Interval(0.8251, 0.81, 0.8402, 8), {}, [0.82] * 8, 8, {"ok": 8}, {"cpu_s": 0.0123})
    chance = Row("chance", "floor", Interval(0.501, 0.49, 0.512, 8), {}, [0.5] * 8, 8, {"ok": 8}, {"cpu_s": 1234.4})
    rows = [
        ours,
        replace(plain, versus=compared("plain", "not shown", -0.0031, 0.0061, 0.0153, 23)),
        replace(chance, versus=compared("chance", floor, 0.3111, 0.3302, 0.3493)),
    ]
    return Report(bout, [], Summary(rows, [], floor == "better", ["paired by seed over 8 seeds"]))


def test_the_terminal_table_is_this() -> None:
    assert small().table(140).splitlines() == [
        "ours: A title. 8 seeds, 3 contenders, primary: AUC (higher is better), margin 0.01",
        "",
        "contender  AUC [95 %]            vs ours: difference [95 %]   wins  p(Holm)  verdict"
        "                       CPU s  peak MB     size",
        "ours       0.831 [0.820, 0.842]  -                               -        -  -      "
        "                        41.2      310  1.23 MB",
        "plain      0.825 [0.810, 0.840]  +0.006 [-0.003, 0.015]      7-0-1    0.016  not sho"
        "wn (23 seeds needed)  0.0123      n/a      n/a",
        "chance     0.501 [0.490, 0.512]  +0.330 [0.311, 0.349]       7-0-1    0.016  ours be"
        "tter                   1,234      n/a      n/a",
        "",
        "difference = ours minus the contender on the same seeds; wins = wins-ties-losses of ours; "
        "the verdict is on ours.",
        "",
        "paired by seed over 8 seeds",
        "scale: 200 rows",
        "Use it: from bakeoff.explain import Ours",
    ]


def test_an_unbeaten_floor_is_line_one_everywhere() -> None:
    report = small(floor="practically equal")
    line = "The floor is not beaten (against chance: practically equal)."
    assert report.table().splitlines()[0] == line == report.to_json()["warning"]
    page = Words.of(report.to_html())
    assert page.text.index(line) < page.text.index("ours next to its rivals")
    assert "beats the floor" not in report.headline
    assert small().warning == ""


def test_a_ratio_is_shown_where_the_metric_is_compared_by_ratios() -> None:
    report = small(scale="log")
    assert "vs ours: ratio [95 %]" in report.table(140)
    assert "x0.330 [0.311, 0.349]" in report.table(140)
    assert "margin 1 %" in report.table(140)
    assert report.legend.startswith("ratio = ours divided by the contender")


def test_few_seeds_show_every_value_and_no_interval() -> None:
    bout = make_bout(seeds=(0, 1, 2))
    report = Report.build(bout, make_runs(bout))
    for row, cells in zip(report.summary.rows, report.cells, strict=True):
        assert "[" not in cells[1] + cells[2]
        shown = [float(text) for text in re.findall(r"\((.*)\)", cells[1])[0].split(", ")]
        assert shown == pytest.approx(row.values, rel=5e-3)
    assert {cells[5] for cells in report.cells[1:]} == {"too few runs"}


def test_ordinary_names_fit_110_columns_and_narrow_terminals_fold_words_only() -> None:
    report = example()
    assert max(map(len, report.table(110).splitlines())) <= 110
    for width in (60, 80, 110, 200):
        text = re.sub(r"\s+", " ", report.table(width))
        assert all(number in text for cells in report.cells for number in (cells[1].strip(), cells[2].strip()))


def test_failed_runs_are_seen_everywhere_and_excluded_contenders_too() -> None:
    report = example()
    expected = [
        "not applicable: boosted (needs xgboost)",
        "not ok: noisy failed: LinAlgError: singular covariance (seed 2, 5)",
    ]
    assert report.excluded == expected == report.to_json()["excluded"]
    page = Words.of(report.to_html()).text
    for line in expected:
        assert line in report.table(200)
        assert line in page
    assert "last line printed" in page
    assert sum(run["status"] == "failed" for run in report.to_json()["runs"]) == 2


def test_the_last_run_of_a_seed_counts() -> None:
    bout = make_bout()
    runs = make_runs(bout)
    stale = replace(runs[7], status="failed", scores={}, error="ValueError: first try")
    report = Report.build(bout, [stale, *runs])
    assert not report.excluded
    assert len(report.runs) == len(runs)


def test_claims_carry_their_verdict_numbers_and_the_command_that_would_decide() -> None:
    report = example()
    held = report.summary.claims[0]
    assert held.verdict == "held"
    assert held.value is not None
    text = report.table(300)
    assert f"  held                It beats plain. | +{held.value.mean:.4f} [" in text
    assert "  not decidable here  It scales. | decide it with: run-it" in text
    page = Words.of(report.to_html()).text
    assert all(word in page for word in ("a gain above 0", "(Table 1)", "decide it with: run-it"))


def test_a_metric_that_no_run_has_is_not_announced() -> None:
    bout = make_bout()
    runs = make_runs(bout)
    assert "exploratory, in the report, without verdict: seconds" in Report.build(bout, runs).notes
    bout = replace(bout, metrics=(*bout.metrics, Metric("absent", "lower")))
    assert "exploratory, in the report, without verdict: seconds" in Report.build(bout, runs).notes
    for run in runs:
        del run.scores["seconds"]
    assert not [note for note in Report.build(bout, runs).notes if "exploratory" in note]


@pytest.mark.parametrize(
    ("verdict", "needed", "text"),
    [
        ("better", None, "ours better"),
        ("worse", None, "ours worse"),
        ("practically equal", None, "practically equal"),
        ("not shown", 12, "not shown (12 seeds needed)"),
        ("not shown", None, "not shown"),
        ("too few runs", None, "too few runs"),
    ],
)
def test_verdicts_read_one_way_only(verdict: str, needed: int | None, text: str) -> None:
    assert verdict_text(compared("plain", verdict, 0, 0, 0, needed), "ours") == text


def test_the_headline_names_every_rival_once() -> None:
    assert small().headline == "On AUC, ours is not shown to be better or worse than plain. It beats the floor."
    headline = example().headline
    assert all(headline.count(name) == 1 for name in ("plain", "slow", "noisy"))
    assert "chance" not in headline


def number(text: str) -> float:
    return float(text.strip().lstrip("x").replace(",", ""))


def unit_in_last_place(text: str) -> float:
    mantissa, _, exponent = text.strip().lstrip("x").partition("e")
    return 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


moderate = st.floats(-1e8, 1e8) | st.floats(-1, 1) | st.floats(0, 1e-6)
ordered = st.tuples(moderate, st.floats(0, 10), st.floats(0, 10)).map(
    lambda t: Interval(t[0], t[0] - t[1], t[0] + t[2], 8)
)


@given(st.lists(ordered, min_size=1, max_size=6), st.booleans(), st.booleans())
def test_numbers_in_the_table_are_the_summarys_rounded(intervals: list[Interval], log: bool, paired: bool) -> None:
    for interval, text in zip(intervals, interval_texts(intervals, log=log, paired=paired), strict=True):
        mean, low, high = re.fullmatch(r" *(\S+) \[(\S+), (\S+)\]", text).groups()  # type: ignore[union-attr]
        for value, shown in ((interval.mean, mean), (interval.low, low), (interval.high, high)):
            assert value is not None
            assert abs(number(shown) - value) <= 0.5001 * unit_in_last_place(shown) + 1e-12 * abs(value)


@given(st.floats(1e-3, 1e5), st.floats(1e-4, 1))
def test_a_lone_number_keeps_three_digits(mean: float, share: float) -> None:
    text = interval_texts([Interval(mean, mean * (1 - share), mean * (1 + share), 8)])[0].split(" ")[0]
    assert abs(number(text) - mean) <= 0.006 * 2 * mean


wild = st.floats() | st.floats(-10, 10)
names = st.text(max_size=40) | st.sampled_from(ATTACKS) | st.just("\x1b[31mred\u202e\ud800\n$x^2$")
statuses = st.sampled_from(["ok", "failed", "timeout", "oom", "diverged", "interrupted"])
intervals_ = st.builds(Interval, wild, st.none() | wild, st.none() | wild, st.integers(0, 100))
comparisons = st.builds(
    Comparison,
    rival=names,
    unit=st.sampled_from(["seed", "example"]),
    difference=st.none() | intervals_,
    wins=st.integers(0, 9),
    ties=st.integers(0, 9),
    losses=st.integers(0, 9),
    p=st.none() | st.floats(0, 1),
    p_holm=st.none() | st.floats(0, 1),
    verdict=st.sampled_from(["better", "worse", "practically equal", "not shown", "too few runs"]),
    needed=st.none() | st.integers(2, 10_000),
)
costs = st.dictionaries(st.sampled_from(["wall_s", "cpu_s", "peak_mb", "artefact_bytes"]), wild)


@st.composite
def any_reports(draw: st.DrawFn) -> Report:
    """Reports of anything that the types allow, sensible or not."""
    metric = Metric(draw(names), draw(st.sampled_from(["higher", "lower"])), draw(names), True, draw(st.floats(0, 1)))
    metric = replace(metric, scale=draw(st.sampled_from(["linear", "log"])))
    who = draw(st.lists(names, min_size=2, max_size=5, unique=True))
    claim = Claim(draw(names), draw(names), draw(names), metric.name, who[0], draw(st.sampled_from(["", who[1]])))
    options = draw(st.dictionaries(names, wild | names | st.just(Path("x")), max_size=2))
    texts = {name: draw(names) for name in ("title", "paper", "job", "use", "scale", "command")}
    metrics = (metric, Metric("another", "lower"))
    bout = make_bout(tuple(who), metrics=metrics, claims=(claim,), options=options, notes=(draw(names),), **texts)
    rows = [
        Row(
            contender.name,
            contender.role,
            draw(st.none() | intervals_),
            draw(st.dictionaries(st.just("another"), intervals_)),
            draw(st.lists(wild, max_size=8)),
            8,
            {"ok": 3, "missing": 5},
            draw(costs),
            None if contender.role == "paper" else replace(draw(comparisons), rival=contender.name),
        )
        for contender in bout.contenders
    ]
    scores = st.dictionaries(st.sampled_from([metric.name, "another"]), wild)
    run = st.builds(
        Run,
        key=names,
        method=names,
        contender=st.sampled_from(who),
        seed=st.integers(0, 7),
        options=st.just({}),
        input_hash=names,
        code_hash=names,
        status=statuses,
        scores=scores,
        cost=costs,
        error=names,
        environment=st.dictionaries(names, names, max_size=1),
    )
    verdict = st.sampled_from(["held", "not held", "not shown", "by design", "not decidable here", "not tested"])
    result = ClaimResult(claim, draw(verdict), draw(st.none() | intervals_), draw(names))
    beaten = draw(st.sampled_from([True, False, None]))
    return Report(
        bout, draw(st.lists(run, max_size=6)), Summary(rows, [result], beaten, [draw(names)]), {"a.svg": draw(names)}
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(any_reports(), st.integers(1, 250))
def test_any_summary_gives_a_table_and_strict_json(report: Report, width: int) -> None:
    table = report.table(width)
    assert all(line.isprintable() for line in table.split("\n"))
    assert "nan" not in re.findall(r"[a-z]+", " ".join(" ".join(cells[1:4]) for cells in report.cells))
    data = report.to_json()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert len(data["rows"]) == len(report.summary.rows)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(any_reports())
def test_any_summary_gives_a_page_and_a_board(report: Report) -> None:
    for page in (report.to_html(), board([report, report.to_json()], ["a.html"])):
        check_page(page)
    assert report._repr_html_().count("<tbody") == len(report.summary.rows)


class Words(HTMLParser):
    """Tags, attributes and text of a page, read by a parser that is not the template's."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.tags, self.attributes = "", [], []  # type: ignore[var-annotated]

    @classmethod
    def of(cls, page: str) -> Words:
        words = cls()
        words.feed(page)
        words.close()
        return words

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def check_page(page: str) -> Words:
    """One script and it is the one that the policy allows; no handler, no address but data and plain links."""
    words = Words.of(page)
    assert words.tags.count("script") == words.tags.count("style") == 1
    assert not {"iframe", "object", "embed", "base", "svg", "b", "strong"} & set(words.tags)
    script = re.search(r"<script>(.*?)</script>", page, re.S)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    policy = "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; style-src 'unsafe-inline'; "
    policy += f"script-src 'sha256-{digest}'"
    assert ("meta", "content", policy) in words.attributes
    for tag, name, value in words.attributes:
        assert not name.startswith("on")
        if name in ("src", "srcset") or (tag, name) == ("link", "href"):
            assert value.startswith("data:")
    return words


def attacked() -> Report:
    """Every text that a user or a host library can influence, turned against the page."""
    a = ATTACKS
    claim = Claim(a[0], a[1], a[2], "AUC", a[3], a[4])
    metrics = (Metric("AUC", "higher", a[5], primary=True, margin=0.01), Metric(a[6], "lower"))
    bout = make_bout((a[3], a[4], a[7], a[8], a[9]), metrics=metrics, claims=(claim,), notes=(a[0], a[9]))
    bout = replace(bout, title=a[3], paper=a[4], job=a[5], use=a[6], scale=a[7], command=a[8], options={a[9]: a[0]})
    runs = make_runs(bout)
    for run in runs[::7]:
        run.status, run.error, run.scores = "failed", "\n".join(a), {}
        run.environment = {a[1]: a[2]}
    return replace(Report.build(replace(bout, absent={a[1]: a[2]}), runs), figures={a[3]: a[4], "ok.svg": a[8]})


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "ok.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    report = attacked()
    page = check_page(report.to_html(tmp_path))
    for attack in ATTACKS:
        assert attack in page.text
    assert "1337" not in page.text
    boarded = check_page(board([report], ["javascript:window.hacked=1"]))
    assert "a" not in boarded.tags
    assert ATTACKS[5] in boarded.text
    assert "<script" not in report._repr_html_()
    for draw in re.findall(r"data:image/svg\+xml;base64,([\w+/=]+)", report.to_html()):
        assert not [e for e in ElementTree.fromstring(base64.b64decode(draw)).iter() if "script" in str(e.tag).lower()]


def test_only_images_in_the_figures_folder_are_embedded(tmp_path: Path) -> None:
    folder, secret = tmp_path / "out" / "figures", tmp_path / "secret.svg"
    folder.mkdir(parents=True)
    secret.write_text("SECRET")
    (folder / "link.svg").symlink_to(secret)
    (folder / "page.html").write_text("SECRET")
    (folder / "huge.png").write_bytes(b"SECRET" * 100_000)
    (folder / "good.svg").write_text("<svg/>")
    wanted = {"../../secret.svg": "up", str(secret): "absolute", "link.svg": "link", "page.html": "page"}
    wanted |= {"huge.png": "huge", "gone.png": "gone", "a\0.png": "null", "good.svg": "good"}
    page = replace(small(), figures=wanted).to_html(tmp_path / "out")
    assert base64.b64encode(b"SECRET").decode()[:7] not in page
    assert base64.b64encode(b"<svg/>").decode() in page
    words = Words.of(page).text
    assert words.count("(not a file name that ends in") == 4
    assert "huge (above 400 kB)" in words
    assert words.count("(cannot be read)") == 2


def test_save_writes_both_files_and_leaves_nothing_else(tmp_path: Path) -> None:
    report = example(title="unpaired \ud800")
    path = report.save(tmp_path / "deep" / "out")
    assert path == tmp_path / "deep" / "out" / "report.html"
    assert sorted(p.name for p in path.parent.iterdir()) == ["report.html", "report.json"]
    assert json.loads((path.parent / "report.json").read_text()) == report.to_json()
    assert path.read_text() == report.to_html(path.parent)


def test_a_page_of_5_contenders_and_8_seeds_is_below_2_mb(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    figures = {f"{i}.png": "caption" for i in range(3)}
    for name in figures:
        (tmp_path / "figures" / name).write_bytes(random.Random(0).randbytes(399_000))
    report = example()
    for run in report.runs:
        run.error = "a line of output that is eighty characters long " * 2 * 20
    assert len(replace(report, figures=figures).to_html(tmp_path).encode()) < 2_000_000
    assert len(example().to_html().encode()) < 300_000


def test_the_json_holds_the_numbers_of_the_table_and_every_score() -> None:
    report = example()
    data = json.loads(json.dumps(report.to_json()))
    for row, kept in zip(report.summary.rows, data["rows"], strict=True):
        assert row.primary is not None
        assert kept["primary"] == {
            "mean": row.primary.mean,
            "low": row.primary.low,
            "high": row.primary.high,
            "n": row.primary.n,
        }
        assert (kept["versus"] or {}).get("verdict") == (row.versus.verdict if row.versus else None)
    assert [run["scores"] for run in data["runs"]] == [run.scores for run in report.runs]
    assert from_json(Bout, data["bout"]) == report.bout


def test_what_json_cannot_hold_becomes_null_or_text() -> None:
    report = small()
    report.summary.rows[0] = replace(report.summary.rows[0], primary=Interval(math.nan, -math.inf, math.inf, 8))
    report.bout.options["path"] = Path("x")
    data = report.to_json()
    assert data["rows"][0]["primary"] == {"mean": None, "low": None, "high": None, "n": 8}
    assert data["bout"]["options"]["path"] == "x"
    assert report.cells[0][1].strip().startswith("n/a")


@given(st.data())
def test_the_pareto_set_is_the_undominated_contenders(data: st.DataObject) -> None:
    from matplotlib.figure import Figure

    report = example()
    points = data.draw(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=5, max_size=5))
    better = data.draw(st.sampled_from(["higher", "lower"]))
    sign = 1 if better == "higher" else -1
    rows = [
        replace(row, primary=Interval(float(y), None, None, 8), cost={"cpu_s": float(x)})
        for row, (x, y) in zip(report.summary.rows, points, strict=True)
    ]
    metric = replace(report.bout.primary, better=better)
    drawn = Report(replace(report.bout, metrics=(metric,)), [], replace(report.summary, rows=rows))
    axes = Figure().add_subplot()
    _cost_quality(drawn, axes)
    marks = [line for line in axes.lines if line.get_marker() == "o"]
    filled = {(line.get_xdata()[0], line.get_ydata()[0]) for line in marks if line.get_markerfacecolor() != "none"}
    expected = {
        (x, y) for x, y in points if not any(a <= x and sign * b >= sign * y and (a, b) != (x, y) for a, b in points)
    }
    assert filled == expected
    assert len(marks) == len(points)


def test_the_board_shows_room_counts_and_a_link_for_each_method() -> None:
    first, second = example(), example(method="other", use="from bakeoff.decide import Other")
    page = check_page(board([first, json.loads(json.dumps(second.to_json()))], ["a/report.html"]))
    assert [value for tag, name, value in page.attributes if (tag, name) == ("a", "href")] == ["a/report.html"]
    rooms = [value for tag, name, value in page.attributes if (tag, name) == ("tbody", "data-room")]
    assert rooms == ["explain", "decide"]
    verdicts = [value for _, name, value in page.attributes if name == "data-verdicts"]
    assert verdicts[0].split("|") == [row.versus.verdict for row in first.summary.rows[1:4] if row.versus]
    assert check_page(board([])).tags.count("tbody") == 0


def test_the_notebook_shows_the_table_alone() -> None:
    fragment = Words.of(example()._repr_html_())
    assert "html" not in fragment.tags
    assert fragment.tags.count("table") == 1
    for cells in example().cells:
        assert all(cell in fragment.text for cell in cells)


def test_no_word_that_claims_more_than_was_measured() -> None:
    for text in (example().table(), example().to_html(), board([example()]), small("worse").table()):
        assert not re.search(r"significan|state[- ]of[- ]the[- ]art|p-hack|winner", text, re.I)


def test_printable_text_cannot_steer_a_terminal() -> None:
    assert printable("a\x1b[31m\u202eb\ud800c\n\t\u2028é漢") == "a\ufffd[31m\ufffdb\ufffdc   é漢"


def test_import_is_light() -> None:
    code = (
        "import sys, bakeoff.arena.report\n"
        "print([m for m in ('matplotlib', 'jinja2', 'scipy', 'pandas', 'torch', 'sklearn') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
