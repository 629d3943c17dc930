"""A condition that cannot be written in SQL has no triggers to compare with the database's."""

from __future__ import annotations

import pytest
from django.core.checks import run_checks
from django.db.models import Q

from pgembed_django import embeddable
from tests.unit.test_decorator import isolated, make_model  # noqa: F401

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    "when", [Q(rank="many"), Q(rank=float("inf")), Q(rank__range=(1,)), Q(rank__contained_by=[])]
)
def test_the_checks_of_a_database_leave_it_to_the_one_that_names_it(when):
    embeddable(fields=["title"], when=when)(make_model())

    found = run_checks(databases=["default"])

    ours = [message.id for message in found if str(message.id).startswith("pgembed")]
    assert ours == ["pgembed.E006"]
