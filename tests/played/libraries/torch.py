"""Stands in for torch, which takes gigabytes: as much of it as a model without weights needs."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np

inference_mode = nullcontext
threads = []
set_num_threads = threads.append
cuda = SimpleNamespace(is_available=lambda: False, empty_cache=lambda: None)


class OutOfMemoryError(RuntimeError):
    pass


class Tensor(np.ndarray):
    device = SimpleNamespace(type="cpu")

    def sum(self, dim):
        return np.asarray(self).sum(axis=dim)

    def to(self, device, non_blocking):
        return self

    def float(self):
        return self.astype(np.float32)

    def cpu(self):
        return self

    def numpy(self):
        return np.asarray(self)


def tensor(values):
    return np.asarray(values).view(Tensor)


def cat(tensors):
    return np.concatenate(tensors).view(Tensor)
