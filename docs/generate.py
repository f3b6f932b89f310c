"""Writes the gallery, one page per method, and the method table of README.md.

A page is a function of the card, the docstrings and the stored report of the default bout. The docstrings are read from
the syntax tree, so that nothing heavy is imported.

Run: python docs/generate.py [--check]      (--check writes nothing and exits 1 where a file is stale)
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import docstring_parser

from bakeoff import catalog
from bakeoff.arena import plan, store
from bakeoff.arena.report import Report
from bakeoff.arena.types import Card

ROOT = Path(__file__).parents[1]
WIDTH = 110
START, END = "<!-- methods -->", "<!-- /methods -->"


@dataclass(frozen=True)
class Method:
    """What a page is made from."""

    card: Card
    folder: Path
    report: Report | None


def main() -> int:
    """Write or check all generated files."""
    parser = argparse.ArgumentParser(description="Writes docs/gallery and the method table of README.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file is stale")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout")
    given = parser.parse_args()
    files = build(given.root)
    gone = [path for path in (given.root / "docs" / "gallery").glob("*.md") if path not in files]
    stale = [path for path, text in files.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in [*stale, *gone]:
        print(
            f"{'stale' if given.check else 'written' if path in files else 'removed'}: {path.relative_to(given.root)}"
        )
    if given.check:
        return 1 if stale or gone else 0
    for path in gone:
        path.unlink()
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[path], encoding="utf-8")
    return 0


def build(root: Path) -> dict[Path, str]:
    """All generated files and what has to be in them."""
    methods = [method_of(card, root) for card in catalog.cards().values() if card.package.startswith("bakeoff.")]
    gallery, readme = root / "docs" / "gallery", root / "README.md"
    files = {gallery / f"{m.card.slug}.md": page(m) for m in methods}
    files[gallery / "index.md"] = index(methods)
    before, _, rest = readme.read_text(encoding="utf-8").partition(START)
    _, end, after = rest.partition(END)
    if not end:
        sys.exit(f"{readme}: the markers {START} and {END} are missing")
    files[readme] = f"{before}{START}\n{method_table(methods, 'docs/gallery/')}\n{END}{after}"
    return files


def method_of(card: Card, root: Path) -> Method:
    """A method with its stored report, where there is one."""
    _, room, name = card.package.split(".")
    stored, report = root / "docs" / "reports" / card.slug, None
    if (stored / "bout.json").is_file():
        bout = store.read_bout(stored)
        report = Report.build(bout, plan.select(bout, store.read_runs(stored)[0]))
    return Method(card, root / "src" / "bakeoff" / room / name, report)


def index(methods: list[Method]) -> str:
    """The gallery's first page, by room."""
    text = "# Methods\n\nWhat each one is for, and how it did against its rivals in the stored default bout.\n"
    for room in sorted({m.card.room for m in methods}):
        text += f"\n## {room}\n\n{method_table([m for m in methods if m.card.room == room], '')}\n"
    return text


def method_table(methods: list[Method], where: str) -> str:
    """One line per method."""
    lines = ["| Method | Room | What it is for | In the stored default bout |", "|---|---|---|---|"]
    for m in methods:
        name, job = f"[{m.card.slug}]({where}{m.card.slug}.md)", sentence(m.card.job)
        lines.append(f"| {name} | {m.card.room} | {job} | {in_few_words(m.report)} |")
    return "\n".join(lines)


def in_few_words(report: Report | None) -> str:
    """Verdicts against the rivals, the floor and the claims, counted."""
    if report is None:
        return "no stored report yet"
    rivals = [row.versus.verdict for row in report.summary.rows if row.versus and row.role != "floor"]
    words = ("better", "practically equal", "not shown", "worse", "too few runs")
    told = [f"{rivals.count(word)} {word}" for word in words if word in rivals]
    floors = [row.versus.verdict for row in report.summary.rows if row.versus and row.role == "floor"]
    above = "beats the floor" if {*floors} == {"better"} else "above the floor on average, not shown"
    floor = {True: above, False: "does not beat the floor", None: "floor: cannot be told"}
    claims = Counter(c.verdict for c in report.summary.claims)
    held = f"claims: {', '.join(f'{n} {verdict}' for verdict, n in claims.items())}" if claims else "no claims"
    rivals_told = f"against {len(rivals)} rivals: {', '.join(told)}" if rivals else "no rivals"
    return f"{rivals_told}; {floor[report.summary.floor_beaten]}; {held}"


def page(m: Method) -> str:
    """The page of one method."""
    card = m.card
    parts = [
        f"# {card.slug}: {card.title}",
        f"{sentence(card.job)}.",
        f"Paper: {md(card.paper)}. Room: {card.room}. Install in a checkout: `pip install -e '.[{card.extra}]'`.",
        use_in_python(m),
        on_your_input(m),
        default_bout(m),
        "## Limits\n\n" + "\n".join(f"- {md(limit)}" for limit in (f"Scale here: {card.scale}.", *card.limits)),
    ]
    return "\n\n".join(parts) + "\n"


def use_in_python(m: Method) -> str:
    """Import line, what the main object does, its example and its parameters; the other public names in a line each."""
    docs = {name: docstring(m.folder, name) for name in m.card.exports}
    main, room = m.card.exports[0], m.card.package.rpartition(".")[0]
    parsed = docstring_parser.parse(docs[main], docstring_parser.DocstringStyle.NUMPYDOC)
    names = ", ".join(m.card.exports) if len(m.card.exports) <= 3 else main
    parts = ["## Use it in Python", f"```python\nfrom {room} import {names}\n```"]
    parts.append(f"**{main}.** {md(parsed.short_description or '')}")
    parts += [prose(parsed.long_description)] if parsed.long_description else []
    example = re.search(r"^Examples\n-+\n(.*?)(?=^\w[^\n]*\n---|\Z)", docs[main], re.M | re.S)
    parts += [f"```pycon\n{example[1].strip()}\n```"] if example else []
    parameters = [p for p in parsed.params if p.args[0] == "param"]
    if parameters:
        rows = [f"| `{p.arg_name}` | {md(p.type_name or '')} | {md(p.description or '')} |" for p in parameters]
        parts.append("\n".join(["| Parameter | Type | |", "|---|---|---|", *rows]))
    others = [f"- `{name}`: {md(docs[name].split(chr(10) * 2)[0])}" for name in m.card.exports[1:]]
    parts += ["Also public:\n\n" + "\n".join(others)] if others else []
    return "\n\n".join(parts)


def prose(text: str) -> str:
    """Paragraphs, numbered steps and bullets of a docstring."""
    paragraphs = []
    for block in text.split("\n\n"):
        items = re.split(r"\n(?=(?:\d+\.|-) )", block.strip())
        paragraphs.append("\n".join(md(item, keep_marker=True) for item in items))
    return "\n\n".join(paragraphs)


def on_your_input(m: Method) -> str:
    """The options of the command, from the signature and the docstring of `load`."""
    tree = ast.parse((m.folder / "bout.py").read_text(encoding="utf-8"))
    load = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "load")
    texts = {p.arg_name: p.description or "" for p in docstring_parser.parse(ast.get_docstring(load) or "").params}
    rows = []
    for argument, default in zip(load.args.kwonlyargs, load.args.kw_defaults, strict=True):
        shown = "" if default is None else ast.unparse(default)
        if argument.arg != "quick":
            name = f"--{argument.arg.strip('_').replace('_', '-')}"
            value = "" if shown in ("None", "False") else f"`{shown.strip(chr(39))}`"
            rows.append(f"| `{name}` | {value} | {md(texts.get(argument.arg, ''))} |")
    table = "\n".join(["| Option | Default | |", "|---|---|---|", *rows])
    told = "How many seeds, where to write and how to run: `--help` and the how-tos."
    return f"## Compare it on your own input\n\n```sh\nbakeoff run {m.card.slug} --help\n```\n\n{table}\n\n{told}"


def default_bout(m: Method) -> str:
    """The stored table and the claims with their verdicts."""
    if m.report is None:
        return "## The default bout\n\nThere is no stored report yet; `make bouts` makes it."
    r, link = m.report, f"../reports/{m.card.slug}/report.html"
    blocks = [b for b in r.table(WIDTH).split("\n\n") if not b.startswith("claims of the paper")]
    parts = [
        "## The default bout",
        f"{md(r.headline)} [The full report]({link}) has the plots and every run; "
        "[how to read the table](../read-the-table.md).",
        f"```sh\n{r.bout.command}\n```",
        f"Scale: {md(r.bout.scale)}.",
        "```text\n" + "\n\n".join(blocks) + "\n```",
    ]
    rows = [
        f"| {md(c.claim.text)} | {md(c.claim.paper_figure)} | {md(c.claim.expect)} | {c.verdict} "
        f"| {md(r.claim_numbers(c))} |"
        for c in r.summary.claims
    ]
    head = "| The paper says | Where | What must come out here | Verdict | Numbers |\n|---|---|---|---|---|"
    return "\n\n".join([*parts, "## Claims", "\n".join([head, *rows])])


def docstring(folder: Path, name: str) -> str:
    """The docstring of a public class or function, wherever in the folder it is defined."""
    for path in sorted(folder.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                return ast.get_docstring(node) or ""
    sys.exit(f"{folder}: nothing there is called {name!r}, which card.toml exports")


def md(text: str, keep_marker: bool = False) -> str:
    """One line of Markdown that shows the text as it is; what stands in backticks stays code."""
    text = " ".join(text.replace("``", "`").split())
    marker = re.match(r"(?:\d+\.|-) ", text) if keep_marker else None
    start = marker.end() if marker else 0
    parts = re.split(r"(`[^`]+`)", text[start:])
    shown = [p if p.startswith("`") and len(p) > 1 else re.sub(r"([\\`*_{}\[\]|#])", r"\\\1", escape(p)) for p in parts]
    return text[:start] + "".join(shown)


def sentence(text: str) -> str:
    """With a capital and without a full stop."""
    return md(text[:1].upper() + text[1:].rstrip("."))


def escape(text: str) -> str:
    """No tag and no entity is left."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


if __name__ == "__main__":
    sys.exit(main())
