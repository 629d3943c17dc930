from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.apps import apps
from django.contrib.contenttypes.fields import GenericForeignKey
from django.core.checks import run_checks
from django.db import connections, models
from django.db.models import Q
from django.utils.translation import gettext_lazy

import pgembed_django.checks
from pgembed_django import conf, embeddable
from pgembed_django.checks import IDS, check_declarations, check_providers, check_settings
from pgembed_django.chunking import Chunker
from pgembed_django.core import postgres
from pgembed_django.declaration import specs
from tests.unit.test_decorator import isolated, make_model  # noqa: F401

ROOT = Path(__file__).parents[2]
FOLDER = Path(pgembed_django.checks.__file__).parent
PROVIDER = {
    "BACKEND": "pgembed_django.providers.deterministic.DeterministicProvider",
    "MODEL": "m",
    "DIMENSIONS": 64,
}


def texts(messages: list[Any]) -> list[tuple[str, str, str]]:
    return [(message.id, message.msg, message.hint) for message in messages]


def test_every_id_is_listed_and_given_by_a_check():
    given = {
        found
        for path in (*FOLDER.glob("[a-z]*.py"), FOLDER.parent / "tasks/checks.py")
        for found in re.findall(r"pgembed\.[EW]\d{3}", path.read_text())
    }

    assert given == set(IDS)


def test_the_tests_own_settings_are_flawless():
    assert [message for message in run_checks() if str(message.id).startswith("pgembed")] == []


@pytest.mark.parametrize("app", ["pgtrigger", "django.contrib.postgres"])
def test_an_app_that_is_needed_is_named(settings, app):
    settings.INSTALLED_APPS = [name for name in settings.INSTALLED_APPS if name != app]

    assert texts(check_settings()) == [
        (
            "pgembed.E001",
            f"'{app}' is not in INSTALLED_APPS.",
            f"pgembed_django needs it: add '{app}'.",
        )
    ]


def test_unknown_and_unusable_settings_are_named(settings):
    settings.PGEMBED_LEASE = 3
    settings.PGEMBED_POLL_SECONDS = -1

    first, second = check_settings()

    assert (first.id, second.id) == ("pgembed.E002", "pgembed.E002")
    assert "PGEMBED_LEASE is not a setting" in first.msg
    assert "PGEMBED_LEASE_SECONDS" in first.hint
    assert second.msg == "PGEMBED_POLL_SECONDS is -1."


@pytest.mark.parametrize("value", [0, 0.0])
def test_a_lease_of_no_time_is_refused(settings, value):
    settings.PGEMBED_LEASE_SECONDS = value

    [message] = check_settings()

    assert message.msg == f"PGEMBED_LEASE_SECONDS is {value!r}."
    assert message.hint == "Set it to a number above 0, up to 1,000,000,000."


@pytest.mark.parametrize("value", [math.inf, math.nan, 10**12, Decimal(5), "5", True, None])
@pytest.mark.parametrize(
    "name", [name for name in conf.NAMES if name.endswith(("_SECONDS", "_ATTEMPTS", "_LIMIT"))]
)
def test_a_number_is_one_that_can_be_counted_to_or_waited_for(settings, name, value):
    setattr(settings, name, value)

    [message] = check_settings()

    assert (message.id, message.msg) == ("pgembed.E002", f"{name} is {value!r}.")
    assert "1,000,000,000" in message.hint


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"HNSW_M": 101, "HNSW_EF_CONSTRUCTION": 300}, "PGEMBED_HNSW_M is 101."),
        ({"HNSW_M": 1}, "PGEMBED_HNSW_M is 1."),
        ({"HNSW_M": 65}, "PGEMBED_HNSW_EF_CONSTRUCTION is 128."),
        ({"HNSW_EF_CONSTRUCTION": 1001}, "PGEMBED_HNSW_EF_CONSTRUCTION is 1001."),
        ({"TEXT_SEARCH_CONFIG": None}, "PGEMBED_TEXT_SEARCH_CONFIG is None."),
        ({"WORKER_DATABASE": "elsewhere"}, "PGEMBED_WORKER_DATABASE is 'elsewhere'."),
        ({"WORKER_DATABASE": []}, "PGEMBED_WORKER_DATABASE is []."),
        ({"TEXT_SEARCH_CONFIG": ""}, "PGEMBED_TEXT_SEARCH_CONFIG is ''."),
        ({"TEXT_SEARCH_CONFIG": "\0"}, "PGEMBED_TEXT_SEARCH_CONFIG is '\\x00'."),
        ({"INDEX_TYPE": np.zeros(2)}, "PGEMBED_INDEX_TYPE is array([0., 0.])."),
        ({"LEASE_SECONDS": np.zeros(2)}, "PGEMBED_LEASE_SECONDS is array([0., 0.])."),
        ({"BM25_K1": 0}, "PGEMBED_BM25_K1 is 0."),
        ({"BM25_B": -0.1}, "PGEMBED_BM25_B is -0.1."),
        ({"BM25_B": 1.5}, "PGEMBED_BM25_B is 1.5."),
        ({"BM25_B": "0.75"}, "PGEMBED_BM25_B is '0.75'."),
        ({"TRACING": np.zeros(2)}, "PGEMBED_TRACING is array([0., 0.])."),
    ],
)
def test_what_pgvector_or_django_would_refuse_later_is_named_at_once(settings, given, said):
    for name, value in given.items():
        setattr(settings, f"PGEMBED_{name}", value)

    [message] = check_settings()

    assert (message.id, message.msg) == ("pgembed.E002", said)
    assert message.hint


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("PGEMBED_PROVIDER", "Did you mean PGEMBED_PROVIDERS?"),
        ("PGEMBED_XYZ", f"There are: {', '.join(conf.NAMES)}."),
    ],
)
def test_an_unknown_setting_is_answered_with_the_one_that_is_like_it(settings, name, hint):
    setattr(settings, name, {})

    [message] = [one for one in check_settings() if one.id == "pgembed.E002"]

    assert message.hint == hint


@pytest.mark.parametrize("name", ["PGEMBED_NOTIFY", "PGEMBED_TRACING"])
@pytest.mark.parametrize("value", ["False", "", 0, None])
def test_what_is_on_or_off_is_a_boolean_and_no_string_of_the_environment(settings, name, value):
    setattr(settings, name, value)

    [message] = [one for one in check_settings() if one.id == "pgembed.E002"]

    assert message.msg == f"{name} is {value!r}."
    assert "True or False" in message.hint


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"BACKEND": "no.such.Provider"}, "BACKEND is 'no.such.Provider', which cannot be"),
        ({"BACKEND": "datetime.date"}, "BACKEND is 'datetime.date', which is not a subclass of"),
        ({"DIMENSIONS": "768"}, "DIMENSIONS is '768'."),
        ({"DIMENSIONS": 0}, "DIMENSIONS is 0."),
        ({"MODELL": "m"}, "has an unknown key 'MODELL'"),
        ({"OPTIONS": {"colour": "red"}}, "DeterministicProvider has no option 'colour'"),
        ({"DIMENSIONS": 16_001}, "DIMENSIONS is 16001."),
        ({"BACKEND": dict}, "BACKEND is <class 'dict'>, which is not a string."),
        ({"MODEL": None}, "MODEL is None."),
        ({"OPTIONS": None}, "OPTIONS is not a dict."),
        ({"OPTIONS": {"document_prefix": None}}, "document_prefix is None."),
        ({"OPTIONS": {"query_prefix": Path("/")}}, "OPTIONS cannot be stored as JSON"),
        ({"OPTIONS": {"query_prefix": "\0"}}, "OPTIONS cannot be stored as JSON: a text has a NUL"),
        ({"MODEL": "m\0"}, "OPTIONS cannot be stored as JSON: a text has a NUL"),
        ({"MODEL": "\udcff"}, "surrogates not allowed"),
        ({"BACKEND": math}, "BACKEND is <module 'math'"),
        ({"REQUESTS_PER_MINUTE": 10**400}, "REQUESTS_PER_MINUTE is 1000"),
        (
            {
                "BACKEND": "pgembed_django.providers.ollama.OllamaProvider",
                "OPTIONS": {"timeout_seconds": 1e308},
            },
            "timeout_seconds is 1e+308.",
        ),
        (
            {
                "BACKEND": "pgembed_django.providers.openai.OpenAIProvider",
                "OPTIONS": {"header_envs": "API_KEY"},
            },
            "header_envs is not a dict",
        ),
        (
            {
                "BACKEND": "pgembed_django.providers.wordllama.WordLlamaProvider",
                "MODEL": "l2_supercat",
                "DIMENSIONS": 768,
            },
            "DIMENSIONS is 768.",
        ),
    ],
)
def test_an_unusable_provider_is_named_with_value_and_remedy(settings, changes, said):
    settings.PGEMBED_PROVIDERS = {"default": {**PROVIDER, **changes}}

    [message] = check_settings()

    assert message.id == "pgembed.E003"
    assert "PGEMBED_PROVIDERS['default']" in message.msg
    assert said in message.msg
    assert message.hint not in ("", message.msg)


@pytest.mark.parametrize("alias", [1, None, ("default",)])
def test_an_alias_that_is_no_string_is_named(settings, alias):
    settings.PGEMBED_PROVIDERS = {"default": PROVIDER, alias: PROVIDER}

    [message] = check_settings()

    assert (message.id, message.hint) == ("pgembed.E003", "Name it by one.")
    assert message.msg == f"PGEMBED_PROVIDERS[{alias!r}]: the alias is not a string."


@pytest.mark.parametrize("value", [[PROVIDER], None, "default"])
def test_providers_that_are_no_dict_are_named(settings, value):
    settings.PGEMBED_PROVIDERS = value

    [message] = [*check_settings(), *check_declarations(), *check_providers()]

    assert (message.id, message.msg) == ("pgembed.E003", "PGEMBED_PROVIDERS is not a dict.")
    assert message.hint == "Set it to a dict of aliases, in the shape of DATABASES."


def test_a_reranker_that_cannot_be_built_is_named(settings):
    config = {"BACKEND": "pgembed_django.rerankers.http.HttpReranker", "MODEL": "m"}
    settings.PGEMBED_RERANKERS = {"best": {**config, "OPTIONS": {"base_url": "localhost"}}}

    assert texts(check_settings()) == [
        (
            "pgembed.E027",
            "PGEMBED_RERANKERS['best']: base_url is 'localhost'.",
            'Set it to something like "http://host:8080".',
        )
    ]


def test_rerankers_that_are_no_dict_are_named(settings):
    settings.PGEMBED_RERANKERS = ["best"]

    [message] = check_settings()

    assert (message.id, message.msg) == ("pgembed.E027", "PGEMBED_RERANKERS is not a dict.")


def test_triggers_kept_out_of_migrations_are_a_warning(settings):
    settings.PGTRIGGER_MIGRATIONS = False

    assert [message.id for message in check_settings()] == ["pgembed.W002"]


@pytest.fixture
def cachalot(settings, monkeypatch, tmp_path):
    """An app of that name: all that is asked of it is whether it is there."""
    (tmp_path / "cachalot").mkdir()
    (tmp_path / "cachalot/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "cachalot"]


def test_tables_whose_queries_are_cached_are_named(settings, cachalot):
    [message] = check_settings()

    assert message.id == "pgembed.W011"
    assert "app_articleembedding" in message.msg
    assert "pgembed_job" in message.msg
    assert "app_article," not in message.msg

    settings.CACHALOT_UNCACHABLE_APPS = ("pgembed",)
    settings.CACHALOT_UNCACHABLE_TABLES = [
        spec.embedding_model._meta.db_table for spec in specs.all() if "Page" not in spec.key
    ]
    [message] = check_settings()
    assert "pgembed_job" not in message.msg
    assert "app_articleembedding" not in message.msg
    assert "app_pageembedding" in message.msg


@pytest.mark.parametrize(
    "spared", [{"CACHALOT_ENABLED": False}, {"CACHALOT_UNCACHABLE_APPS": ("app", "pgembed")}]
)
def test_nothing_is_said_where_no_query_of_ours_is_cached(settings, cachalot, spared):
    for name, value in spared.items():
        setattr(settings, name, value)

    assert check_settings() == []


def test_an_unknown_provider_of_a_model_is_named_with_those_there_are():
    embeddable(fields=["title"], provider="nope")(make_model())

    [message] = check_declarations()

    assert texts([message]) == [
        (
            "pgembed.E004",
            "@embeddable on Thing: no provider named 'nope'.",
            "Name one of PGEMBED_PROVIDERS: default.",
        )
    ]


def test_no_providers_at_all_is_said_plainly(settings):
    settings.PGEMBED_PROVIDERS = {}

    hints = {message.hint for message in check_declarations()}

    define = "Define PGEMBED_PROVIDERS['default'], a dict with BACKEND, MODEL and DIMENSIONS."
    assert hints == {define}


def test_an_alias_that_was_forgotten_is_not_taken_for_three(settings):
    settings.PGEMBED_PROVIDERS = {**settings.PGEMBED_PROVIDERS["default"]}

    [hint] = {one.hint for one in check_declarations() if one.id == "pgembed.E004"}

    assert hint.startswith("Define PGEMBED_PROVIDERS['default'], a dict")


class Elsewhere:
    def db_for_write(self, model: type[models.Model], **_: object) -> str | None:
        return "elsewhere" if model.__name__ == "Note" else None


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[None]:
    sqlite = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    monkeypatch.setitem(connections.settings, "elsewhere", sqlite)
    settings.DATABASE_ROUTERS = [Elsewhere()]
    yield
    del connections["elsewhere"]


@pytest.mark.usefixtures("elsewhere")
def test_a_database_that_is_not_postgres_is_named():
    [message] = check_declarations()

    assert message.id == "pgembed.E005"
    assert message.msg == "@embeddable on Note: its database 'elsewhere' is SQLite."
    assert "'django.db.backends.postgresql'" in message.hint


@pytest.mark.usefixtures("elsewhere")
def test_triggers_are_compiled_for_postgres_where_the_default_is_another(monkeypatch):
    monkeypatch.setattr(postgres, "DEFAULT_DB_ALIAS", "elsewhere")

    assert postgres.any_postgres().vendor == "postgresql"


@pytest.mark.parametrize(
    "when", [Q(rank="many"), Q(title="\0"), Q(at="yesterday"), Q(rank__in=["many"])]
)
def test_a_condition_that_sql_cannot_say_is_named(when):
    embeddable(fields=["title"], when=when)(make_model())

    [message] = check_declarations()

    assert message.id == "pgembed.E006"
    assert message.msg.startswith("@embeddable on Thing: its condition cannot be written as SQL: ")
    assert "['" not in message.msg


@pytest.mark.parametrize(
    ("count", "problem"),
    [
        ("nowhere.tokens", "No module named 'nowhere'"),
        ("os.tokens", "module 'os' has no attribute 'tokens'"),
        ("os.path", "it is a module"),
    ],
)
def test_a_count_that_is_no_function_is_named_before_a_row_fails_by_it(count, problem):
    embeddable(fields=["title"], chunker=Chunker(count=count))(make_model())

    [message] = check_declarations()

    assert message.id == "pgembed.E019"
    assert (
        message.msg == f"@embeddable on Thing: its chunker cannot use count={count!r}: {problem}."
    )


def test_a_count_that_can_be_imported_is_fine():
    embeddable(fields=["title"], chunker=Chunker(count="builtins.len"))(make_model())

    assert check_declarations() == []


@pytest.mark.parametrize(
    "key",
    [
        models.DateTimeField,
        models.DateField,
        models.FloatField,
        models.DurationField,
        models.BinaryField,
        models.GenericIPAddressField,
    ],
)
def test_a_key_that_prints_differently_for_each_connection_is_refused(key):
    model = make_model(key=key(primary_key=True), title=models.TextField())
    embeddable(fields=["title"])(model)
    pointing = make_model(
        "Pointing",
        key=models.OneToOneField(model, primary_key=True, on_delete=models.CASCADE),
        title=models.TextField(),
    )
    embeddable(fields=["title"])(pointing)

    messages = check_declarations()

    assert [message.id for message in messages] == ["pgembed.E007"] * 2
    assert f"@embeddable on Thing: its primary key is a {key.__name__}" in messages[-1].msg


def test_such_a_key_of_a_related_row_is_refused_too():
    host = make_model(
        "Host", address=models.GenericIPAddressField(primary_key=True), label=models.TextField()
    )
    thing = make_model(
        title=models.TextField(), host=models.ForeignKey(host, on_delete=models.CASCADE)
    )
    embeddable(fields=["title"], related=["host__label"])(thing)

    [message] = check_declarations()

    assert message.id == "pgembed.E007"
    assert "'address' of Host is a GenericIPAddressField" in message.msg


@pytest.mark.parametrize(
    ("field", "said", "remedy"),
    [
        (models.FileField(), "a path is embedded, and not", "a method that reads the file"),
        (models.ImageField(), "a path is embedded", "a method that reads the file"),
        (
            models.IntegerField(choices={1: "Draft", 2: "Live"}),
            "choices are embedded as they are stored, 1 and not 'Draft'.",
            "calls get_kind_display(): text=",
        ),
        (
            models.CharField(choices=[("Europe", [("de", gettext_lazy("German"))])], max_length=2),
            "choices are embedded as they are stored, 'de' and not 'German'.",
            "calls get_kind_display(): text=",
        ),
    ],
)
def test_what_is_embedded_as_it_is_stored_is_told(field, said, remedy):
    attributes = {"title": models.TextField(), "kind": field, "told": lambda self: "text"}
    embeddable(fields=["title", "kind"])(make_model(**attributes))

    [message] = check_declarations()

    assert message.id == "pgembed.W014"
    assert message.msg.startswith(f"@embeddable on Thing: of 'kind', {said}")
    assert remedy in message.hint
    assert "SILENCED_SYSTEM_CHECKS" in message.hint


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (models.CharField(choices=[("in_progress", "In progress")], max_length=20), None),
        (models.CharField(choices=[("", "---"), ("done", "Done")], max_length=20), None),
        (models.FileField(), "told"),
        (models.IntegerField(choices={1: "Draft"}), "told"),
    ],
)
def test_nothing_is_said_of_choices_like_their_labels_or_if_a_method_makes_the_text(field, text):
    model = make_model(title=models.TextField(), kind=field, told=lambda self: "text")
    embeddable(fields=["title", "kind"], text=text)(model)

    assert check_declarations() == []


def test_so_are_columns_of_related_rows():
    class EncryptedTextField(models.TextField):
        pass

    topic = make_model(
        "Topic",
        kind=models.IntegerField(choices={1: "Draft"}),
        secret=EncryptedTextField(),
    )
    thing = make_model(
        title=models.TextField(), topic=models.ForeignKey(topic, on_delete=models.CASCADE)
    )
    embeddable(fields=["title"], related=["topic__kind", "topic__secret"])(thing)

    encrypted, stored = check_declarations()

    assert (encrypted.id, stored.id) == ("pgembed.W012", "pgembed.W014")
    assert "'topic__secret' looks encrypted" in encrypted.msg
    assert "calls get_kind_display()" in stored.hint


@pytest.mark.parametrize(("fields", "is_told"), [(["body"], True), (["body", "title"], False)])
def test_a_text_method_of_a_child_that_names_nothing_of_its_parent_is_told(fields, is_told):
    parent = make_model("Parent", title=models.TextField())
    child = make_model(bases=(parent,), body=models.TextField(), told=lambda self: self.title)
    embeddable(fields=fields, text="told")(child)

    messages = check_declarations()

    assert [one.id for one in messages] == ["pgembed.W016"] * is_told
    assert all("told() may read columns of Parent" in one.msg for one in messages)


def test_a_translated_field_is_told_unless_its_languages_are_watched():
    topic = make_model("Topic", title=models.TextField())
    thing = make_model(
        title=models.TextField(),
        topic=models.ForeignKey(topic, on_delete=models.CASCADE),
        told=lambda self: "text",
    )
    for model in (topic, thing):
        for language in ("en", "de"):
            column: Any = models.TextField()
            column.translated_field = model._meta.get_field("title")
            model.add_to_class(f"title_{language}", column)

    embeddable(fields=["title"], related=["topic__title", "topic__title_de"])(thing)
    first, second = check_declarations()
    assert first.id == second.id == "pgembed.W015"
    assert first.msg == (
        "@embeddable on Thing: 'title' of Thing is translated, and update() writes title_en, "
        "title_de alone."
    )
    assert second.msg.startswith("@embeddable on Thing: 'title' of Topic is translated")
    assert "instead of 'title', in translation.py" in first.hint

    specs._registry.clear()
    names = ["title", "title_en", "title_de"]
    of_topic = [f"topic__{name}" for name in names]
    embeddable(fields=names, related=of_topic, text="told", name="Whole")(thing)
    assert check_declarations() == []


@pytest.fixture
def family() -> type[models.Model]:
    """A model with a parent of its own kind, and with comments."""
    thing = make_model(
        title=models.TextField(),
        parent=models.ForeignKey("self", null=True, on_delete=models.CASCADE),
        target=GenericForeignKey("kind", "target_id"),
        kind=models.ForeignKey("contenttypes.ContentType", on_delete=models.CASCADE),
        target_id=models.TextField(),
        full_text=lambda self: "text",
    )
    make_model("Comment", thing=models.ForeignKey(thing, on_delete=models.CASCADE))
    return thing


@pytest.mark.parametrize(
    ("path", "said", "hint"),
    [
        (
            "parnt",
            "Thing has no relation 'parnt'.",
            "Did you mean 'parent'? There are: comment_set",
        ),
        ("parent__title", "Thing has no relation 'title'.", "There are: comment_set, kind,"),
        ("comment_set__things", "Comment has no relation 'things'.", "Did you mean 'thing'?"),
    ],
)
def test_a_relation_that_does_not_exist_is_named_before_each_row_fails_by_it(
    family, path, said, hint
):
    embeddable(fields=["title"], text="full_text", prefetch=[path])(family)

    [message] = check_declarations()

    assert message.id == "pgembed.E023"
    assert message.msg == f"@embeddable on Thing: prefetch names {path!r}, and {said}"
    assert message.hint.startswith(hint)


def test_whatever_can_be_prefetched_may_be_named(family):
    prefetch = [
        "parent__comment_set__thing",
        "target__whatever",
        models.Prefetch("thing_set", to_attr="children"),
        "children__parent",
    ]
    embeddable(fields=["title"], text="full_text", prefetch=prefetch)(family)

    assert check_declarations() == []


@pytest.mark.parametrize(
    ("names", "module"),
    [
        (["SealedField", "EncryptedMixin"], "house.fields"),
        (["EncryptedTextField"], "encrypted_fields.fields"),
        (["TextPGPSymmetricKeyField"], "pgcrypto.fields"),
        (["FernetTextField"], "house.fields"),
        (["FirstnameField"], "django_crypto_fields.fields"),
    ],
)
@pytest.mark.parametrize("store_text", [True, False, "nothing"])
def test_encrypted_content_that_would_be_stored_in_plain_is_told(names, module, store_text):
    bases: tuple[type, ...] = (models.TextField,)
    for name in reversed(names):
        bases = (type(name, bases, {"__module__": module}),)
    model = make_model(title=models.TextField(), secret=bases[0](), other=bases[0]())
    embeddable(fields=["title", "secret"], store_text=store_text)(model)

    messages = check_declarations()

    if store_text == "nothing":
        assert messages == []
        return
    [message] = messages
    assert message.id == "pgembed.W012"
    what = "passages and lexemes" if store_text else "lexemes"
    assert message.msg == (
        "@embeddable on Thing: 'secret' looks encrypted, and app.ThingEmbedding stores its text "
        f"in plain, as {what}."
    )
    assert message.hint.startswith("Leave the field out, or set store_text='nothing': ")
    assert "SILENCED_SYSTEM_CHECKS" in message.hint


@pytest.mark.parametrize("module", ["crypto.fields", "house.description"])
def test_a_field_of_an_app_about_other_things_does_not_look_encrypted(module):
    field = type("CoinField", (models.TextField,), {"__module__": module})
    embeddable(fields=["title"])(make_model(title=field()))

    assert check_declarations() == []


def test_a_model_that_takes_the_place_of_ours_is_told():
    model = make_model(title=models.TextField())
    embeddable(fields=["title"])(model)
    with pytest.warns(RuntimeWarning, match="was already registered"):
        make_model("ThingEmbedding", title=models.TextField())

    [message] = check_declarations()

    assert message.id == "pgembed.E018"
    assert "another model 'app.ThingEmbedding' is defined below it" in message.msg
    assert message.hint == "Give the declaration a name of its own: name='ThingVectors'."


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> type[models.Model]:
    """A model of an installed package, decorated in the project."""
    package = "/venv/lib/python3.13/site-packages/theirs"
    monkeypatch.setattr(apps.get_app_config("app"), "path", package)
    model = make_model()
    monkeypatch.setattr(sys.modules[model.__module__], "Thing", model, raising=False)
    return embeddable(fields=["title"])(model)


@pytest.mark.usefixtures("theirs")
def test_a_migration_that_would_be_written_into_a_package_is_told():
    [message] = [found for found in check_declarations() if found.id == "pgembed.W004"]

    assert message.msg == (
        "@embeddable on Thing: makemigrations would write its table and triggers into "
        "/venv/lib/python3.13/site-packages/theirs, where the next installation deletes them."
    )
    assert "proxy" in message.hint
    assert "MIGRATION_MODULES['app']" in message.hint


@pytest.mark.usefixtures("theirs")
def test_migrations_that_are_kept_elsewhere_are_ones_own(settings):
    settings.MIGRATION_MODULES = {"app": "shop.their_migrations"}

    assert check_declarations() == []


def test_a_package_that_decorates_its_own_models_ships_their_migrations(monkeypatch):
    package = "/venv/lib/python3.13/site-packages/theirs"
    monkeypatch.setattr(apps.get_app_config("app"), "path", package)
    embeddable(fields=["title"])(make_model())

    assert check_declarations() == []
