"""Texts with characters that join, and where they may be cut according to the package regex."""

from __future__ import annotations

from itertools import accumulate

import regex
from hypothesis import strategies as st

FAMILY = "\U0001f469\u200d\U0001f469\u200d\U0001f467"
GERMANY = "\U0001f1e9\U0001f1ea"
THUMB = "\U0001f44d\U0001f3fd"

# Where clusters are made: one sample at least of each class of UAX #29, and plain letters.
JOINING = (
    "ab .\r\n\t\0\x85\u2028\xad\u200b"  # letters, spaces, controls
    "\u0301\u0308\u20dd\ufe0f\U000e0101\u200c\u200d\uff9e\u302e"  # extenders
    "\u0903\u0e33\u0eb3\u093e\U0001d166"  # spacing marks
    "\u0600\u06dd\u070f\u0890\u0d4e\U000110bd\U000113d1\U00011f02"  # prefixes
    "\u1100\u1160\u11a8\uac00\uac01\ua960\ud7b0\ud7cb\U00016d63\U00016d67"  # syllables
    "\u0915\u094d\u0937\u093c\u0995\u09cd\u1b13\u1b44\u1780\u17d2"  # Indic conjuncts
    "\U0001f469\U0001f467\u2764\xa9\U0001f3fd\U0001f1e9\U0001f1ea\U000e0067\U000e007f"  # emoji
    "\u0378\U0001fadf\U00020000\U0002ebf0\U000323b0\ud800\ufffd\uffff"  # unassigned and odd
)
joining_text = st.text(st.sampled_from(JOINING) | st.characters(), max_size=30)


def true_boundaries(text: str) -> set[int]:
    return {0, *accumulate(len(cluster) for cluster in regex.findall(r"\X", text))}
