"""A model of any size with random weights, made here: how fast it is does not depend on them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from string import ascii_lowercase, digits

from benchmarks.models.texts import VOCABULARY

CONTEXT = 512
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SIZE = 30_522
"""Of BERT's vocabulary."""


def write(folder: Path, *, layers: int, width: int) -> Path:
    """Write a BERT with mean pooling that sentence-transformers loads."""
    # Imported by name, so that type checking does not need the extra installed.
    library = import_module("transformers")
    bert = folder / "bert"
    config = library.BertConfig(
        vocab_size=SIZE,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=12,
        intermediate_size=4 * width,
        max_position_embeddings=CONTEXT,
    )
    library.BertModel(config).save_pretrained(bert)
    letters = [*ascii_lowercase, *digits]
    pieces = [*SPECIAL, *letters, *(f"##{one}" for one in letters), *sorted({*VOCABULARY} - {"a"})]
    pieces += [f"[unused{number}]" for number in range(SIZE - len(pieces))]
    (bert / "vocab.txt").write_text("\n".join(pieces) + "\n")
    modules = import_module("sentence_transformers.models")
    embedding = modules.Transformer(str(bert), max_seq_length=CONTEXT)
    made = import_module("sentence_transformers").SentenceTransformer(
        modules=[embedding, modules.Pooling(width)], device="cpu"
    )
    made.save(str(folder / "model"))
    return folder / "model"
