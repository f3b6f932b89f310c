"""Finds the methods by their ``card.toml``; imports none of them."""

from __future__ import annotations

import difflib
import functools
import re
import sys
import tomllib
from importlib import metadata, util
from pathlib import Path
from typing import Any

from bakeoff.arena.types import Card, InputError

GROUP = "bakeoff.methods"
"""Entry-point group of packages that add method folders of their own; the value names a package of method folders."""

_LISTS = ("exports", "hosts", "preload", "limits")


@functools.cache
def cards() -> dict[str, Card]:
    """All methods by slug, in the order of rooms and names."""
    here = Path(__file__).parent
    found = [
        read_card(path, f"bakeoff.{path.parts[-3]}.{path.parts[-2]}") for path in sorted(here.glob("*/*/card.toml"))
    ]
    known = {card.slug: card for card in found}
    for entry in metadata.entry_points(group=GROUP):
        try:
            spec = util.find_spec(entry.value)
            for folder in (spec.submodule_search_locations or []) if spec else []:
                for path in sorted(Path(folder).glob("*/card.toml")):
                    card = read_card(path, f"{entry.value}.{path.parts[-2]}")
                    if known.setdefault(card.slug, card) is not card:
                        raise InputError(f"there is a method {card.slug!r} already", str(path), "choose another slug")
        except (ImportError, InputError) as error:  # one plug-in must not take all methods along
            print(f"bakeoff: plug-in {entry.name} left out: {error}", file=sys.stderr)
    return known


def read_card(path: Path, package: str) -> Card:
    """One card; InputError where it is not valid TOML or a field is missing or unknown."""
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        fields: dict[str, Any] = {k: tuple(v) if k in _LISTS else v for k, v in data.items()}
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,59}", str(data.get("slug", ""))):
            raise ValueError("the slug must be lower-case letters, digits and hyphens")
        return Card(package=package, **fields)
    except (ValueError, TypeError) as error:
        raise InputError(str(error), str(path), "compare it with the card of another method") from error


def find(slug: str) -> Card:
    """The method of that name; InputError with near names where there is none."""
    known = cards()
    if slug in known:
        return known[slug]
    near = difflib.get_close_matches(slug, known, n=3, cutoff=0.4) or sorted(known)
    raise InputError(f"no method {slug!r}", "bakeoff", f"did you mean {', '.join(near)}? `bakeoff list` shows all")
