from __future__ import annotations

import dataclasses
import datetime
import decimal
import uuid

import pgtrigger
import pytest
from django.db import DataError, ProgrammingError, connection, models, transaction
from django.db.models import F, Q, Value
from django.db.models.lookups import GreaterThan, In, Regex
from django.test.utils import isolate_apps
from django.utils import timezone

from pgembed_django import triggers
from pgembed_django.checks import check_databases
from pgembed_django.core import database, postgres
from pgembed_django.declaration import specs
from pgembed_django.triggers import conditions, installed
from tests.app.models import EVIL, Archived, Article, Category, Contact, Note, Oddity, Product

pytestmark = pytest.mark.django_db

NOW = timezone.now()
KEY = uuid.UUID(int=7)


class Title(models.TextChoices):
    FIRST = "a"


class Number(models.IntegerChoices):
    ONE = 1


def matching(when: Q, model: type[models.Model]) -> set[object]:
    """Return the keys of the rows that match, as a trigger would find."""
    table = postgres.quoted_table(model)
    key = postgres.quoted_name(model._meta.pk.column)
    condition = conditions.compiled(when, model=model, row="new")
    with connection.cursor() as cursor:
        cursor.execute(f'SELECT "new".{key}, {condition} FROM {table} AS "new"')
        rows = cursor.fetchall()
    assert all(isinstance(matches, bool) for _, matches in rows)
    return {key for key, matches in rows if matches}


def install(model: type[models.Model], when: Q) -> list[pgtrigger.Trigger]:
    watch = triggers.Watch(
        key="app.Odd", name="odd", fields=(), when=when, priority=0, embedding_table="none"
    )
    made = triggers.triggers(watch)
    for trigger in made:
        trigger.install(model)
    return made


def make_collated(**collations: str) -> type[models.Model]:
    fields = {name: models.TextField(db_collation=each) for name, each in collations.items()}
    meta = type("Meta", (), {"app_label": "app"})
    with isolate_apps("tests.app"):
        return type("Collated", (models.Model,), {**fields, "Meta": meta, "__module__": __name__})


@pytest.fixture
def rows() -> None:
    category = Category.objects.create(pk=5, name="c")
    Article.objects.create(title="a", published_time=NOW, category=category)
    Article.objects.create(title="50%_\\", contents="{0} %s $1")
    Article.objects.create(title=EVIL, contents="A", author="a")
    Product.objects.create(title="a", price=decimal.Decimal("-1.50"), in_stock=False)
    Product.objects.create(title="b", price=3)
    for is_public in (True, False, None):
        Archived.objects.create(body="a", is_public=is_public)
    for title, order in ((EVIL, 1), (None, 1), ("a", None), ("b", -1), ("c", 2)):
        Oddity.objects.create(title=title, order=order, floor=1)
    Note.objects.create(pk=KEY, body="a")
    Note.objects.create(body="b", seen=-3)
    Contact.objects.create(name="Ada", binary_json={"a": 1, "evil": EVIL})
    Contact.objects.create(name="bob", binary_json=[1, 2])


CONDITIONS = [
    (Article, Q(published_time__isnull=False)),
    (Article, ~Q(published_time=NOW)),
    (Article, Q(published_time__lte=NOW + datetime.timedelta(days=1))),
    (Article, Q(published_time__gt=datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))),
    (Article, Q(category=5)),
    (Article, ~Q(category_id=5)),
    (Article, Q(category__in=[5, 6])),
    (Article, Q(category__isnull=True) & Q(pk__gte=0)),
    (Article, Q(title__contains="0%_\\")),
    (Article, Q(title__startswith="50%") | Q(contents__icontains="A")),
    (Article, Q(contents="{0} %s $1")),
    (Article, Q(title__in={"a", "b", EVIL})),
    (Article, Q(title__iexact=EVIL.upper())),
    (Article, Q(title__regex=r"^50%")),
    (Article, Q(title=F("author")) | Q(author__lt=F("contents"))),
    (Article, Q(title=Title.FIRST)),
    (Article, Q(contents__contains=F("author"))),
    (Article, Q(title=Value("a"))),
    (Article, Q(title__in=[])),
    (Article, ~Q(title__in=[])),
    (Article, ~Q(title__in=[]) & Q(author="a")),
    (Article, Q(title="a") ^ Q(author="a")),
    (Product, Q(in_stock=True)),
    (Product, ~Q(in_stock=True)),
    (Product, Q(price=decimal.Decimal("-1.50"))),
    (Product, Q(price__range=(-2, Number.ONE))),
    (Product, Q(id=F("id").bitand(255))),
    (Product, Q(GreaterThan(F("price"), Value(0)))),
    (Archived, Q(is_public=True)),
    (Archived, Q(is_public=None)),
    (Archived, ~Q(is_public=True)),
    (Archived, Q(is_public__in=[True, None])),
    (Oddity, Q(title=EVIL)),
    (Oddity, ~Q(title=EVIL) & Q(order__gte=F("floor"))),
    (Oddity, Q(order=-1)),
    (Oddity, Q(order__lte=F("floor").bitor(2))),
    (Note, Q(pk=KEY)),
    (Note, Q(id__in=frozenset([KEY, uuid.UUID(int=8)]))),
    (Note, Q(seen=-3)),
    (Contact, Q(name="ADA")),
    (Contact, Q(binary_json={"a": 1, "evil": EVIL})),
    (Contact, Q(binary_json__has_key="a")),
    (Contact, Q(binary_json__contains={"evil": EVIL})),
    (Contact, Q(binary_json=[1, 2])),
]


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize(("model", "when"), CONDITIONS)
def test_a_trigger_finds_the_rows_that_the_query_finds(model, when):
    assert list(conditions.refusals(when, model=model)) == []

    found = set(model.objects.filter(when).values_list("pk", flat=True))

    assert matching(when, model) == found


@pytest.mark.parametrize(("model", "when"), CONDITIONS)
def test_what_fails_on_no_row_passes_its_trial(model, when):
    for trial in conditions.trials(when, model=model):
        [[matches]] = database.rows("default", trial)
        assert isinstance(matches, bool)


@pytest.mark.parametrize(
    "when",
    [
        Q(title__regex="("),
        Q(author="a") & (Q(category=5) | ~Q(title__iregex="a{2,1}")),
        Q(Regex(F("contents"), Value("["))),
    ],
)
def test_a_pattern_that_would_fail_each_write_is_found_before_migrate(monkeypatch, when):
    install(Article, when)
    with pytest.raises(DataError, match="invalid regular expression"), transaction.atomic():
        Article.objects.create(title="a", contents="b", author="a")
    spec = dataclasses.replace(specs.get("app.ArticleEmbedding"), when=when)
    monkeypatch.setitem(specs._registry, spec.key, spec)

    [message] = [one for one in check_databases(["default"]) if one.id == "pgembed.E022"]

    assert message.msg.startswith("app.ArticleEmbedding: its condition fails, and each write would")
    assert "invalid regular expression" in message.msg


def test_columns_that_cannot_be_compared_are_found_before_migrate(monkeypatch):
    model = make_collated(first="C", second="POSIX")
    when = Q(first=F("second"))
    with connection.schema_editor() as schema_editor:
        schema_editor.create_model(model)
    install(model, when)
    with pytest.raises(ProgrammingError, match="which collation to use"), transaction.atomic():
        model.objects.create(first="a", second="b")
    spec = dataclasses.replace(specs.get("app.ArticleEmbedding"), model=model, when=when)
    monkeypatch.setitem(specs._registry, spec.key, spec)

    [message] = [one for one in check_databases(["default"]) if one.id == "pgembed.E022"]

    assert "which collation to use" in message.msg


def test_what_a_migration_has_yet_to_create_is_no_failure(monkeypatch):
    model = make_collated(name="of_tomorrow")
    spec = specs.get("app.ArticleEmbedding")
    spec = dataclasses.replace(spec, model=model, when=Q(name__contains="x"))
    monkeypatch.setitem(specs._registry, spec.key, spec)

    assert not [one for one in check_databases(["default"]) if one.id == "pgembed.E022"]


@pytest.mark.parametrize(("model", "when"), CONDITIONS)
def test_a_trigger_that_is_installed_reads_the_columns_that_it_names(model, when):
    """As Postgres writes a condition, it differs. A false alarm would be one for ever."""
    for trigger in install(model, when):
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname = %s",
                [trigger.get_pgid(model)],
            )
            [definition] = cursor.fetchone()
        one = installed.Installed(
            model=model,
            trigger=trigger,
            declared=trigger.compile(model),
            enabled="O",
            hash=None,
            definition=definition,
        )
        assert (one.state, one.is_astray) == (None, False), definition


def test_conditions_differ_enough_to_prove_something():
    assert conditions.compiled(Q(title__in=[]), model=Article, row="new") == "FALSE"
    assert conditions.compiled(~Q(title__in=[]), model=Article, row="new") == "TRUE"
    assert conditions.compiled(None, model=Article, row="old") == "TRUE"
    assert conditions.compiled(Q(), model=Article, row="old") == "TRUE"


@pytest.mark.parametrize(
    "one_of", [lambda letters: Q(title__in=letters), lambda letters: Q(In(F("title"), letters))]
)
def test_sets_are_written_in_one_order_in_every_process(one_of):
    letters = "cafebdg"

    compiled = conditions.compiled(Q(one_of(set(letters))), model=Article, row="old")

    assert compiled == ("(\"old\".\"title\" IN ('a', 'b', 'c', 'd', 'e', 'f', 'g')) IS TRUE")


def test_a_file_is_not_compared_as_text():
    """As text a file of 540 MB is longer than 1 GB, and its update would fail."""
    data = models.BinaryField()
    data.set_attributes_from_name("data")

    assert conditions.changed(data) == '"old"."data" IS DISTINCT FROM "new"."data"'


def test_both_versions_of_the_row_can_be_asked():
    old = conditions.compiled(Q(author=F("title")), model=Article, row="old")
    new = conditions.compiled(Q(author=F("title")), model=Article, row="new")

    assert old == '("old"."author" = ("old"."title")) IS TRUE'
    assert new == old.replace("old", "new")
