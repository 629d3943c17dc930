"""Stands in for the library, which needs torch. A token is a word; its models take six.

A vector is the sum of its text's tokens, so padding must be masked, and cutting shows.
"""

from __future__ import annotations

import os
import signal
import zlib
from types import SimpleNamespace

import numpy as np
import torch

ROOM = 64
"""How many tokens, padding included, fit this device's memory at once."""

loaded = []
computed = []
"""How many tokens were computed at once, padding included."""


class Tokenizer:
    padding_side = "right"

    def __call__(self, texts, *, truncation, padding, verbose):
        return {"input_ids": [tokens(text) for text in texts]}


class SentenceTransformer:
    max_seq_length = 6
    prompts = {}
    default_prompt_name = None
    device = SimpleNamespace(type="cpu")

    def __init__(self, name, **arguments):
        if name == "nowhere":
            raise OSError("no such model")
        loaded.append((name, arguments))
        self.tokenizer = Tokenizer()

    def eval(self):
        return self

    def parameters(self):
        return []

    def preprocess(self, texts, *, prompt):
        if "explode" in texts:
            raise RuntimeError("CUDA out of memory: explode")
        if "kill" in texts:
            os.kill(os.getpid(), signal.SIGKILL)
        rows = [tokens(text) for text in texts]
        cut = [row[: self.max_seq_length - 1] + row[-1:] if len(row) > 6 else row for row in rows]
        longest = max(map(len, cut))
        is_left = self.tokenizer.padding_side == "left"
        padded, mask = [], []
        for row in cut:
            fill = [9] * (longest - len(row))  # no zeros: what is not masked shows
            padded.append(fill + row if is_left else row + fill)
            full, none = [1] * len(row), [0] * len(fill)
            mask.append(none + full if is_left else full + none)
        return {
            "input_ids": torch.tensor(padded),
            "attention_mask": torch.tensor(mask),
            "modality": "text",
        }

    def __call__(self, features):
        ids = features["input_ids"]
        if ids.size > ROOM:
            raise torch.OutOfMemoryError
        computed.append(ids.size)
        vectors = [ids * features["attention_mask"], features["attention_mask"]]
        sums = np.stack([np.asarray(one).sum(axis=1) for one in vectors], axis=1)
        return {"sentence_embedding": torch.tensor(sums)}


class CrossEncoder:
    def __init__(self, name, **arguments):
        loaded.append((name, arguments))

    def predict(self, pairs, *, batch_size, show_progress_bar, convert_to_numpy):
        if any("explode" in passage for _, passage in pairs):
            raise RuntimeError("CUDA out of memory: explode")
        return np.array([passage.count(query) for query, passage in pairs], dtype=np.float32)


def tokens(text):
    return [1, *[zlib.crc32(word.encode()) % 1000 for word in text.split()], 2]
