"""The touch column of the docs works as they have it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pgtrigger
import pytest
from django.core.files.base import ContentFile
from django.db import connection

from pgembed_django.declaration import specs
from tests.unit.test_decorator import isolated  # noqa: F401

pytestmark = pytest.mark.django_db

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/unseen-changes.md"


@pytest.fixture
def papers(monkeypatch: pytest.MonkeyPatch, settings: Any, tmp_path: Path) -> Any:
    """A module of the app with the example of the page, and its tables."""
    settings.MEDIA_ROOT = tmp_path
    module = ModuleType("tests.app.papers")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    [example] = re.findall(r"```python\n(.*?class Paper.*?)```", PAGE.read_text(), re.DOTALL)
    exec(example, vars(module))
    [spec] = specs.of(module.Paper)
    with connection.schema_editor() as editor:
        for model in (module.Paper, spec.embedding_model):
            editor.create_model(model)
        for model, trigger in pgtrigger.registered():
            if model is module.Paper:
                editor.execute(trigger.compile(model).install_sql, params=None)
    return module


def test_a_paper_is_embedded_anew_when_its_file_has_changed(papers, run_jobs, tmp_path):
    made = [
        papers.Paper.objects.create(title=title, scan=ContentFile(b"blank", f"{title}.txt"))
        for title in ("Trout", "Granite")
    ]
    run_jobs()

    (tmp_path / "scans/Trout.txt").write_text("in rivers")
    papers.after_scan(made[0])
    assert run_jobs() == 1

    stored = papers.PaperEmbedding.objects.values_list("passage", flat=True)
    assert set(stored) == {"Trout\n\nin rivers", "Granite\n\nblank"}
