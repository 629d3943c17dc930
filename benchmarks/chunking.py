"""How long it takes to cut texts, and how many chunks stay the same after an edit.

No database. The times are of this thread's CPU.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections.abc import Callable, Iterator
from statistics import fmean

from pgembed_django import Chunker

MEGABYTE = 1_000_000
ARTICLE = 60_000
EDITS = 200
FAMILY = "\U0001f469\u200d\U0001f469\u200d\U0001f467"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add an option for the number of runs."""
    parser.add_argument("--runs", type=int, default=5, help="of which the fastest counts")


def run(options: argparse.Namespace) -> int:
    """Print the times and the shares. It has no bars of its own: it compares two versions."""
    short = prose(3_000)
    print(f"3,000 characters of prose: {fastest(short, 100 * options.runs) * 1e6:.0f} µs\n")
    print(f"{'1,000,000 characters of':28}{'ms':>7}{'chunks':>9}")
    for name, text in kinds(MEGABYTE):
        print(f"{name:28}{fastest(text, options.runs) * 1e3:7.0f}{len(Chunker().split(text)):9,}")
    print(f"\n{'after one edit of 60,000':28}{'chunks that stay':>16}")
    for name, edit in (("a changed word", change_a_word), ("an inserted sentence", add_a_sentence)):
        print(f"{name:28}{share_that_stays(edit):16.1%}")
    return 0


def fastest(text: str, runs: int) -> float:
    """Return the seconds of the fastest of some runs."""
    seconds = []
    for _ in range(runs):
        began = time.thread_time()
        Chunker().split(text)
        seconds.append(time.thread_time() - began)
    return min(seconds)


def kinds(characters: int) -> Iterator[tuple[str, str]]:
    """Yield texts of so many characters, from easy to hostile."""
    yield "prose", prose(characters)
    for name, part in {
        "one word": "x",
        "words, but no sentences": "word ",
        "short lines": "ab\n",
        "newlines": "\n",
        "spaces": " ",
        "CJK": "\u6f22",
        "CJK sentences": "\u6f22\u5b57\u304b\u306a\u3002",
        "Thai": "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22",
        "Devanagari, all linked": "\u0915\u094d",
        "Arabic": "\u0645\u0631\u062d\u0628\u0627",
        "Arabic words": "\u0645\u0631\u062d\u0628\u0627 ",
        "flags": "\U0001f1e9\U0001f1ea",
        "emoji, joined": FAMILY,
        "emoji, all joined": "\U0001f469\u200d",
        "100,000 marks on each letter": "a" + "\u0301" * 100_000,
    }.items():
        yield name, "a" + (part * (characters // len(part) + 1))[: characters - 2] + "b"


def sentence(rng: random.Random) -> str:
    """Return a sentence of five to twenty words."""
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(1, 9))) for _ in range(20)]
    return " ".join(words[: rng.randint(5, 20)]).capitalize() + "."


def prose(characters: int, seed: int = 1) -> str:
    """Return paragraphs of one to five sentences."""
    rng = random.Random(seed)
    text, length = [], 0
    while length < characters:
        text.append(" ".join(sentence(rng) for _ in range(rng.randint(1, 5))))
        length += len(text[-1]) + 2
    return "\n\n".join(text)[:characters]


def change_a_word(text: str, rng: random.Random) -> str:
    """Return the text with another word at some place."""
    space = text.index(" ", rng.randrange(len(text) - 200))
    return text[:space] + re.sub(r"\S+", "elsewhere", text[space:], count=1)


def add_a_sentence(text: str, rng: random.Random) -> str:
    """Return the text with one sentence more at some place."""
    end = text.index(". ", rng.randrange(len(text) - 2_000)) + 1
    return f"{text[:end]} {sentence(rng)}{text[end:]}"


def share_that_stays(edit: Callable[[str, random.Random], str]) -> float:
    """Return the share of an article's chunks that are the same after an edit, on average."""
    shares = []
    for seed in range(EDITS):
        text = prose(ARTICLE, seed)
        before, after = (
            {chunk.digest for chunk in Chunker().split(version)}
            for version in (text, edit(text, random.Random(seed)))
        )
        shares.append(len(before & after) / len(before))
    return fmean(shares)
