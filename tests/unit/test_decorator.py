from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pgtrigger
import pytest
from django.apps import apps
from django.contrib.auth.models import Group
from django.contrib.contenttypes.fields import GenericForeignKey
from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django.db.models import Count, Exists, F, OuterRef, Q, Value
from django.db.models.expressions import RawSQL
from django.db.models.functions import Lower, Now, Random
from django.db.models.lookups import GreaterThan, Regex
from django.test.utils import isolate_apps
from django.utils import timezone
from django.utils.translation import gettext_lazy

import pgembed_django
from pgembed_django import Chunker, embeddable
from pgembed_django.declaration import specs
from tests.app import models as app

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def isolated() -> Iterator[None]:
    """Let models of a test be known to that test only."""
    known, triggers = dict(specs._registry), dict(pgtrigger.registry._registry)
    with isolate_apps("tests.app", "django.contrib.contenttypes", "django.contrib.auth"):
        yield
    specs._registry.clear()
    specs._registry.update(known)
    pgtrigger.registry._registry.data = triggers


async def later(self: models.Model) -> str:
    return "text"


def told_to(self: models.Model, reader: str) -> str:
    return f"text for {reader}"


def make_model(name: str = "Thing", **attributes: Any) -> type[models.Model]:
    meta = {"app_label": "app", **attributes.pop("meta", {})}
    bases = attributes.pop("bases", (models.Model,))
    given = attributes or {
        "title": models.CharField(max_length=100),
        "body": models.TextField(),
        "rank": models.IntegerField(null=True),
        "at": models.DateTimeField(null=True),
        "data": models.JSONField(default=dict),
        "raw": models.BinaryField(),
        "parent": models.ForeignKey("app.Other", on_delete=models.CASCADE),
        "tags": models.ManyToManyField("app.Tag"),
        "double": models.GeneratedField(
            expression=F("rank") * 2, output_field=models.IntegerField(), db_persist=False
        ),
        "target": GenericForeignKey("kind", "target_id"),
        "not_a_method": 7,
        "render": lambda self: "text",
        "shown": property(lambda self: "text"),
        "later": later,
        "told_to": told_to,
    }
    attributes = {"__qualname__": f"f.<locals>.{name}", **given, "__module__": __name__}
    return type(name, bases, {**attributes, "Meta": type("Meta", (), meta)})


def refusal(model: type[models.Model] | None = None, **keywords: Any) -> str:
    model = model or make_model()
    with loading(model), pytest.raises(ImproperlyConfigured) as caught:
        embeddable(**{"fields": ["title"], **keywords})(model)
    return str(caught.value)


@contextmanager
def loading(model: type[models.Model]) -> Iterator[None]:
    """As in a ``models.py``: relations are not resolved yet, and nothing can be translated."""
    registries = apps, model._meta.apps
    try:
        for registry in registries:
            registry.models_ready = registry.ready = False
        yield
    finally:
        for registry in registries:
            registry.models_ready = registry.ready = True


def test_it_returns_the_model_and_generates_another_beside_it():
    model = make_model()

    assert embeddable(fields=["title"])(model) is model

    spec = specs.get("app.ThingEmbedding")
    assert spec.model is model
    generated = spec.embedding_model
    assert generated.__name__ == "ThingEmbedding"
    assert generated.__module__ == __name__
    assert generated._meta.db_table == "app_thingembedding"
    source = generated._meta.get_field("source")
    assert source.remote_field.model is model
    [constraint] = generated._meta.constraints
    assert constraint.name == "pgembed_app_thingembedding_position"
    assert constraint.deferrable is models.Deferrable.DEFERRED


def test_the_generated_model_can_be_imported_from_where_the_model_is():
    assert app.ArticleEmbedding is specs.get("app.ArticleEmbedding").embedding_model
    assert app.ProductTitle._meta.get_field("source").remote_field.model is app.Product


def test_the_generated_model_is_hidden_from_those_who_walk_the_relations_of_a_row():
    relations = {field.related_model for field in app.Article._meta.get_fields()}

    assert app.ArticleComment in relations
    assert app.ArticleEmbedding not in relations
    assert not hasattr(app.Article, "article_embeddings")
    # Queries may follow it.
    rows = app.Article.objects.filter(article_embeddings__was_cut=True)
    assert '"app_articleembedding"."was_cut"' in str(rows.query)


def test_a_local_model_leaves_no_name_in_its_module():
    embeddable(fields=["title"])(make_model())

    assert not hasattr(sys.modules[__name__], "ThingEmbedding")


@pytest.mark.parametrize("taken", [int, app.ArticleEmbedding])
def test_what_the_module_has_by_that_name_is_not_replaced(monkeypatch, taken):
    model = make_model(__qualname__="Thing", title=models.TextField())
    monkeypatch.setattr(sys.modules[__name__], "ThingEmbedding", taken, raising=False)

    said = refusal(model)

    assert f"'ThingEmbedding', and {__name__} has another 'ThingEmbedding' already" in said
    assert said.endswith("Give this declaration a name of its own: name='ThingVectors'.")
    assert ThingEmbedding is taken  # noqa: F821


def test_a_table_in_another_schema_takes_the_embeddings_along():
    assert app.ArchivedEmbedding._meta.db_table == '"archive"."app_archivedembedding"'


def test_an_abstract_base_declares_for_each_table_of_its_own():
    assert specs.get("app.ArticleCommentEmbedding").model is app.ArticleComment
    assert specs.get("app.PageCommentEmbedding").model is app.PageComment
    assert specs.get("app.PinnedPageCommentEmbedding") is None
    assert specs.get("app.AbstractCommentEmbedding") is None


def test_an_abstract_base_may_be_declared_twice():
    base = make_model("Base", title=models.TextField(), meta={"abstract": True})
    embeddable(fields=["title"], name="%(class)sTitle")(embeddable(fields=["title"])(base))

    make_model("One", bases=(base,), extra=models.TextField())

    assert specs.get("app.OneTitle").embedding_model._meta.model_name == "onetitle"
    assert specs.get("app.OneEmbedding")


def test_fields_may_be_inherited_from_an_abstract_base():
    base = make_model("Base", title=models.TextField(), meta={"abstract": True})

    embeddable(fields=["title"])(make_model("One", bases=(base,), extra=models.TextField()))

    assert specs.get("app.OneEmbedding").fields == ("title",)


def test_a_proxy_takes_table_and_triggers_into_its_own_app():
    spec = specs.get("app.TeamEmbedding")

    assert spec.embedding_model._meta.app_label == "app"
    assert not hasattr(Group._meta, "triggers")
    assert len(app.Team._meta.triggers) == 5


def test_names_that_are_too_long_are_cut_and_stay_apart():
    names = ["x" * 90 + end for end in "ab"]
    for name in names:
        embeddable(fields=["title"], name=f"T{name}")(make_model(f"M{name}"))

    generated = [specs.get(f"app.T{name}").embedding_model for name in names]
    constraints = {model._meta.constraints[0].name for model in generated}
    assert len(constraints) == 2
    assert all(len(name) <= 63 for name in constraints)


def test_names_need_not_be_ascii():
    model = make_model("Überschrift")
    embeddable(fields=["title"])(model)

    assert len({trigger.get_pgid(model) for trigger in model._meta.triggers}) == 5


def test_an_unknown_field_is_named_with_those_there_are():
    assert refusal(fields=["nope"]) == (
        "@embeddable on Thing: no field named 'nope'. Fields with text are: title, body."
    )


def test_an_unknown_field_of_a_model_without_text_is_named_with_all():
    assert refusal(make_model(n=models.IntegerField()), fields=["nope"]).endswith(
        "no field named 'nope'. There are: id, n."
    )


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"fields": "title"}, "fields is 'title'. Give a list"),
        ({"fields": []}, "fields is []. Give a list"),
        ({"fields": {"title"}}, "fields is {'title'}. Give a list"),
        ({"fields": 5}, "fields is 5. Give a list"),
        ({"fields": Group.objects.all()}, "fields is a QuerySet. Give a list"),
        ({"fields": [["title"]]}, "fields has ['title'] in it. Give a list of the names"),
        ({"fields": ["title", F("body")]}, "fields has a F in it. Give a list of the names"),
        (
            {"fields": [], "text": "render"},
            "fields is []. Give a list of the fields that the text is made of by render().",
        ),
        ({"fields": ["title", "title"]}, "fields is ['title', 'title']. Name each field once."),
        (
            {"fields": ["parent__name"]},
            "fields name 'parent__name', which is in another table. Name it in related: "
            "related=['parent__name'].",
        ),
        ({"fields": ["nope__name"]}, "no field named 'nope__name'. Fields with text are: title"),
        ({"fields": ["tags"]}, "'tags' is many-to-many: it lives in a table of its own"),
        ({"fields": ["target"]}, "'target' is not a column of the table"),
        ({"fields": ["double"]}, "'double' is a virtual generated column, which triggers do not"),
        (
            {"fields": ["title", "parent"]},
            "'parent' is a foreign key, and without a text method only the other row's key is "
            "embedded. Leave it out, and name what to embed: related=['parent__...']. Or",
        ),
        ({"fields": ["raw"]}, "'raw' is binary: there is no text in it"),
        ({"related": "parent__name"}, "related is 'parent__name'. Give a list of lookups"),
        ({"related": [5]}, "related has 5 in it. Give lookups"),
        ({"related": ["title"]}, "related names 'title', which has no column of another table."),
        ({"related": ["a__b"] * 2}, "related is ['a__b', 'a__b']. Name each lookup once."),
        ({"text": "nope"}, "text is 'nope', and Thing has no such method. Define nope(self)"),
        (
            {"text": "rendr"},
            "text is 'rendr', and Thing has no such method. Did you mean 'render'? Define rendr(",
        ),
        ({"text": "not_a_method"}, "text is 'not_a_method', and Thing has no such method."),
        ({"text": "shown"}, "text is 'shown', which is a property. Make it a method."),
        ({"text": 7}, "text is 7. Give the name of a method."),
        ({"text": ""}, "text is ''. Give the name of a method."),
        ({"text": "later"}, "text is 'later', which is async."),
        (
            {"text": "told_to"},
            "text is 'told_to', and it is called without arguments: missing a required argument",
        ),
        ({"prefetch": ["parent"]}, "prefetch is for a text method, and without one no relation is"),
        ({"text": "render", "prefetch": "parent"}, "prefetch is 'parent'. Give a list, as for"),
        ({"text": "render", "prefetch": [""]}, "prefetch has '' in it. Give the names of"),
        ({"text": "render", "prefetch": [F("parent")]}, "prefetch has a F in it. Give the names"),
        ({"store_text": "no"}, "store_text is 'no'. Choose True, False or 'nothing'."),
        ({"language": ""}, "language is ''. Give a full-text configuration such as 'german'"),
        ({"language": 7}, "language is 7. Give a full-text"),
        ({"language": "rank"}, "language is 'rank': 'rank' is a IntegerField. Name a column of"),
        (
            {"language": "parent"},
            "language is 'parent': 'parent' leads to another table. Copy the language into a",
        ),
        ({"language": "parent__locale"}, "language is 'parent__locale': 'parent' leads to"),
        ({"language": "tags"}, "language is 'tags': 'tags' leads to another table."),
        (
            {"language": "de", "store_text": "nothing"},
            "language is 'de', and store_text='nothing' stores no words.",
        ),
        ({"name": "two words"}, "name is 'two words'. Give a name for a Python class"),
        ({"name": "class"}, "name is 'class'. Give a name"),
        ({"name": "A__B"}, "name is 'A__B'. Give a name"),
        ({"name": "_A"}, "name is '_A'. Give a name"),
        ({"name": 7}, "name is 7. Give a name"),
        ({"name": gettext_lazy("Vectors")}, "name is a __proxy__. Give a name"),
        ({"name": "thing"}, "there already is a model 'app.thing'. Give this declaration"),
        ({"priority": 101}, "priority is 101. Give a whole number from -100 to 100."),
        ({"priority": -101}, "priority is -101. Give a whole number from -100 to 100."),
        ({"priority": 1.5}, "priority is 1.5. Give a whole number"),
        ({"priority": True}, "priority is True. Give a whole number"),
        ({"stale": "drop"}, "stale is 'drop'. Choose 'serve' or 'hide'."),
        ({"trigger_level": "table"}, "trigger_level is 'table'. Choose 'row' or 'statement'."),
        ({"chunker": 400}, "chunker is 400. Give a Chunker(...)."),
        ({"provider": None}, "provider is None. Name an alias of PGEMBED_PROVIDERS."),
        ({"when": {"rank": 1}}, "when is {'rank': 1}. Give a Q object."),
        ({"when": Group.objects.all()}, "when is a QuerySet. Give a Q object."),
        ({"provider": gettext_lazy("default")}, "provider is a __proxy__. Name an alias"),
    ],
)
def test_what_cannot_be_kept_fresh_is_refused_with_value_and_remedy(keywords, said):
    assert refusal(**keywords).startswith(f"@embeddable on Thing: {said}")


@pytest.mark.parametrize(
    ("when", "said"),
    [
        (~Q(nope=1), "no field named 'nope'. Fields of Thing are: id, title, body"),
        (Q(parent__name="x"), "'parent__name' follows a relation, and a trigger sees one row."),
        (Q(parent__id=1), "'parent__id' follows a relation"),
        (Q(tags=1), "'tags' is many-to-many"),
        (Q(target=1), "'target' is not a column"),
        (Q(double=2), "'double' is a virtual generated column"),
        (Q(at__year=2020), "'at__year' transforms 'at'."),
        (Q(at__year__gt=2020), "'at__year__gt' transforms 'at'."),
        (Q(data__key="x"), "'data__key' transforms 'data'."),
        (Q(title=F("parent__name")), "'parent__name' follows a relation"),
        (Q(title=F("nope")), "no field named 'nope'"),
        (Q(at__lte=Now()), "Now() is the clock, and time passing fires no trigger."),
        (~Q(Q(rank=1) | Q(at__gt=Now())), "Now() is the clock"),
        (Q(rank__gt=Random()), "Random is neither a column of the row nor a constant."),
        (Q(title=Lower("body")), "Lower is neither a column"),
        (Q(rank__gt=F("rank") + 1), "'+' fails where the result is too large, or a divisor zero"),
        (Q(rank__gt=-F("id")), "'*' fails where the result is too large"),
        (Q(rank__gt=1 % F("id")), "'%' fails where the result is too large, or a divisor zero"),
        (Q(GreaterThan(F("rank"), F("id") / 2)), "'/' fails where the result is too large"),
        (Q(rank__gt=F("rank") ** 2), "'^' fails where the result is too large"),
        (Q(title__iregex=F("body")), "'iregex' fails where the other column is no valid pattern"),
        (Q(Regex(F("title"), F("body"))), "'regex' fails where the other column is no valid"),
        (Q(title__search="x"), "'search' fails on texts that are too long for it"),
        (Q(rank=Count("tags")), "Count is neither a column"),
        (Q(rank=RawSQL("1", ())), "RawSQL is neither a column"),
        (Q(Exists(Group.objects.filter(pk=OuterRef("pk")))), "Exists is neither a column"),
        (Q(rank__in=Group.objects.values("pk")), "QuerySet is neither a column"),
        (Q(GreaterThan(F("rank"), Random())), "Random is neither a column"),
        (Q(title=F("body")[:3]), "Sliced is neither a column"),
        (Q(rank__in=[1, F("parent__rank")]), "'parent__rank' follows a relation"),
        (Q(rank__in=(n for n in [1, 2])), "a generator can be read once only. Give a list"),
        (Q(at__lte=timezone.now), "is a function. Give its result, if that is a constant."),
        (Q(title=gettext_lazy("x")), "a lazy text is another one in each language"),
        (Q(title__in=["x", gettext_lazy("x")]), "a lazy text is another one in each language"),
        (Q(title=Value(gettext_lazy("x"))), "a lazy text is another one in each language"),
        (Q(("title",)), "a tuple is no condition. Write Q(field=value)."),
        (Q((1, 2)), "a tuple is no condition. Write Q(field=value)."),
        (Q("title"), "a str is no condition. Write Q(field=value)."),
        (Q(True), "a bool is no condition. Write Q(field=value)."),
    ],
)
def test_a_condition_that_a_trigger_cannot_see_is_refused(when, said):
    told = refusal(when=when)

    assert told.startswith("@embeddable on Thing: when: ")
    assert said in told


@pytest.mark.parametrize(
    "when",
    [
        Q(rank=1) | ~Q(title="x"),
        Q(pk__gt=1),
        Q(parent=1),
        Q(parent_id__isnull=False),
        Q(parent__in=[1, 2]),
        Q(title__startswith="x", rank__range=(1, 2)),
        Q(rank=F("rank").bitand(4)),
        Q(title__regex="^x"),
        Q(Regex(F("title"), Value("^x"))),
        Q(title=Value("x")),
        Q(GreaterThan(F("rank"), 1)),
        Q(data={"a": 1}),
        Q(data__has_key="a"),
        Q(),
    ],
)
def test_columns_constants_and_their_comparisons_are_welcome(when):
    embeddable(fields=["title"], when=when)(make_model())

    assert specs.get("app.ThingEmbedding")


def test_why_conditions_do_not_go_through_pgtriggers_own_q():
    # It takes the lookup over a relation for one on the foreign key, and says nothing.
    condition = pgtrigger.Q(new__category__name="x").resolve(app.Article)

    assert condition == """NEW."name" = 'x\'"""
    assert "follows a relation" in refusal(app.Article, name="B", when=Q(category__name="x"))


def test_an_unmanaged_model_is_refused():
    model = make_model(title=models.TextField(), meta={"managed": False})

    assert "the model is unmanaged, so no migration can put triggers" in refusal(model)


def test_a_composite_key_is_refused():
    model = make_model(
        pk=models.CompositePrimaryKey("a", "b"), a=models.TextField(), b=models.TextField()
    )

    assert "its primary key is composite" in refusal(model, fields=["a"])


def test_fields_and_condition_may_name_columns_of_parents():
    model = make_model("Child", bases=(app.Publication,), title=models.TextField())

    embeddable(fields=["title", "issn"], when=Q(issn="1"))(model)

    spec = specs.get("app.ChildEmbedding")
    assert spec.when_spans_tables
    [link] = spec.relations.links
    assert (link.model, link.path) == (app.Publication, "publication_ptr__pk")
    assert [column.name for column in link.columns] == ["id", "issn"]


def test_a_model_may_be_related_to_itself():
    model = make_model(
        "Node",
        title=models.TextField(),
        parent=models.ForeignKey("self", on_delete=models.CASCADE, null=True),
    )

    embeddable(fields=["title"], related=["parent__title"])(model)

    [link] = specs.get("app.NodeEmbedding").relations.links
    assert (link.model, link.path) == (model, "parent__pk")
    names = [one.name for on, one in pgtrigger.registered() if on is model]
    assert names == [one.name for one in model._meta.original_attrs["triggers"]]
    assert len(names) == 7


def test_a_trigger_on_another_table_is_in_the_migrations_of_the_specs_model():
    author, story = app.Author._meta, app.Story._meta
    on_author = [one for on, one in pgtrigger.registered() if on is app.Author]

    assert "triggers" not in author.original_attrs
    assert not hasattr(author, "triggers")
    assert set(on_author) & set(story.original_attrs["triggers"])


def test_the_same_name_twice_is_refused():
    model = embeddable(fields=["title"])(make_model())

    said = refusal(model)

    assert "there already is a model 'app.ThingEmbedding'" in said
    assert "name='ThingVectors'" in said


def test_an_abstract_base_is_decorated_before_it_is_inherited_from():
    base = make_model("Base", title=models.TextField(), meta={"abstract": True})
    make_model("One", bases=(base,), extra=models.TextField())

    assert refusal(base).endswith(
        "One inherit from it already, and would be left out. Decorate it where it is defined, or "
        "decorate those."
    )


def test_one_name_for_all_tables_of_an_abstract_base_is_refused():
    base = make_model("Base", title=models.TextField(), meta={"abstract": True})

    assert "Write for instance '%(class)sVectors'" in refusal(base, name="Vectors")


def test_without_our_app_it_says_what_to_install(settings):
    model = make_model()
    settings.INSTALLED_APPS = [name for name in settings.INSTALLED_APPS if name != "pgembed_django"]

    assert "'pgembed_django' is not in INSTALLED_APPS. Add it" in refusal(model)


def test_what_is_no_model_is_refused():
    with pytest.raises(ImproperlyConfigured, match=r"that is not a model\. Put it above"):
        embeddable(fields=["title"])(str)


def test_without_parentheses_it_says_what_to_write():
    model = make_model()

    said = (
        rf"on {model.__name__}: say with keywords what to embed, for instance @embeddable\(fields"
    )
    with pytest.raises(ImproperlyConfigured, match=said):
        embeddable(model)


def test_with_empty_parentheses_too():
    with pytest.raises(ImproperlyConfigured, match=r"@embeddable\(\): say with keywords"):
        embeddable()


def test_keywords_only():
    with pytest.raises(ImproperlyConfigured, match=r"was given \['title'\]: say with keywords"):
        embeddable(["title"])


def test_its_signature_names_the_keywords():
    assert {"fields", "text", "when"} <= set(inspect.signature(embeddable).parameters)


def test_the_package_exports_what_is_public():
    assert pgembed_django.embeddable is embeddable
    assert pgembed_django.Chunker is Chunker
    assert callable(pgembed_django.search)
    assert callable(pgembed_django.similar_to)
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = pgembed_django.nope
