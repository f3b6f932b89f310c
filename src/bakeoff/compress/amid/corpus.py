"""The text of the bout: tokens to train on, and windows to choose and to score by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bakeoff.inputs.language import check_tokens, decode, jsonl_rows, read_text, split_tokens

if TYPE_CHECKING:
    import torch

WINDOW, VALIDATION, TEST, LEAST_TEST = 128, 20, 40, 30


class Tokens(NamedTuple):
    """Token ids and whether each is to be learnt or scored, both (n,) or (windows, length)."""

    ids: torch.Tensor
    keep: torch.Tensor


class Corpus(NamedTuple):
    """Training stream (n,), 20 windows to choose by, which follow it, and up to 40 test windows of the last tenth."""

    train: Tokens
    validation: Tokens
    test: Tokens


Source = str | list[dict[str, Any]]


def read_source(path: Path | None) -> Source:
    """The text, or the rows of a .jsonl with `prompt` and `response`; needs no torch.

    Raises
    ------
    InputError
        See `read_text`; or so few bytes that there cannot be enough tokens.
    """
    if path is None or path.suffix.lower() != ".jsonl" or not _has_prompts(decode(path)):
        source: Source = read_text(path)
        size = len(source) // 10 * 4  # characters of the last tenth; a token is a byte or more, a character up to 4
    else:
        source = jsonl_rows(decode(path), path, ("prompt", "response"))
        size = sum(len((row["prompt"] + row["response"]).encode()) + 1 for row in source) // 10 + 1
    check_tokens(size, LEAST_TEST * WINDOW, f"{LEAST_TEST} test windows of {WINDOW} in the last tenth (at most)")
    return source


def _has_prompts(text: str) -> bool:
    first = next((line for line in text.split("\n") if line.strip()), "")
    try:
        row = json.loads(first)
    except (ValueError, RecursionError):
        return False  # the reader of the field `text` says what is wrong
    return isinstance(row, dict) and "prompt" in row


def make_corpus(source: Source, tokenizer: Any, quick: bool) -> Corpus:
    """Tokens of the first 90 % and the last 10 % of the text, or of the rows, in windows.

    Raises
    ------
    InputError
        Too few windows that have a token to score.
    """
    train, test = _plain(tokenizer, source) if isinstance(source, str) else _answers(tokenizer, source)
    chosen, tested = _windows(train), _windows(test)
    for what, found, least, more in (("validation", chosen, VALIDATION, 4), ("test", tested, LEAST_TEST, 0)):
        wanted = f"{least} {what} windows of {WINDOW}" + f" and {more} to train on" * bool(more)
        check_tokens(len(found.ids) * WINDOW, (least + more) * WINDOW, wanted)
    first = len(train.ids) % WINDOW + int(_having(train)[-VALIDATION]) * WINDOW
    count = min(TEST, len(tested.ids))
    even = [round(i * (len(tested.ids) - 1) / (count - 1)) for i in range(count)]
    corpus = Corpus(
        Tokens(train.ids[:first], train.keep[:first]),
        Tokens(chosen.ids[-VALIDATION:], chosen.keep[-VALIDATION:]),
        Tokens(tested.ids[even], tested.keep[even]),
    )
    if not quick:
        return corpus
    return corpus._replace(
        validation=Tokens(*(part[:2] for part in corpus.validation)), test=Tokens(*(part[:5] for part in corpus.test))
    )


def _plain(tokenizer: Any, text: str) -> tuple[Tokens, Tokens]:
    import torch

    train, test = split_tokens(tokenizer, text)
    return tuple(Tokens(ids, torch.ones_like(ids, dtype=torch.bool)) for ids in (train, test))  # type: ignore[return-value]


def _answers(tokenizer: Any, rows: list[dict[str, Any]]) -> tuple[Tokens, Tokens]:
    """Prompts and responses in one stream; only responses, with their end token, are kept."""
    import torch

    ends = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    cut = int(0.9 * len(rows))
    parts = []
    for part in (rows[:cut], rows[cut:]):
        ids: list[int] = []
        keep: list[bool] = []
        for row in part:
            texts = (row["prompt"], row["response"])
            prompt, response = (tokenizer(t, add_special_tokens=False, verbose=False)["input_ids"] for t in texts)
            ids += prompt + response + ends
            keep += [False] * len(prompt) + [True] * (len(response) + len(ends))
        parts.append(Tokens(torch.tensor(ids, dtype=torch.int64), torch.tensor(keep, dtype=torch.bool)))
    return parts[0], parts[1]


def _all(tokens: Tokens) -> torch.Tensor:
    """Whole windows, the last one ending with the stream."""
    return tokens.ids[len(tokens.ids) % WINDOW :].reshape(-1, WINDOW)


def _having(tokens: Tokens) -> torch.Tensor:
    """Numbers of the windows with a token to predict."""
    keep = tokens.keep[len(tokens.ids) % WINDOW :].reshape(-1, WINDOW)
    return keep[:, 1:].any(1).nonzero().squeeze(1)


def _windows(tokens: Tokens) -> Tokens:
    keep = tokens.keep[len(tokens.ids) % WINDOW :].reshape(-1, WINDOW)
    return Tokens(_all(tokens)[_having(tokens)], keep[_having(tokens)])
