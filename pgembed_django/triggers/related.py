"""Triggers on other tables that a spec's texts are made of. They only insert ripples.

A row of another table may be part of many texts, and a writer must not wait for their jobs: two
writers who lock the same jobs in another order would deadlock. So these triggers insert into
``pgembed_ripple`` which key of which ``Link`` has changed, and never wait. Workers expand that.

Migrations have these triggers with the spec's own model, in the user's own app, whosever table they
are on: an app of a third party gets no migration, and taking the relation, the model or the
decorator away takes the triggers along. pgtrigger's way, a proxy of the other model, would be one
more model in ``apps.get_models()`` with a content type, made by that model's own metaclass, and
Wagtail's registers each as a type of pages. An operation of our own would need once more all
that pgtrigger's detects and undoes. For its commands, its registry has them with the other model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pgtrigger
from django.db import connections
from django.db.migrations.autodetector import OperationDependency
from django.db.models import Model
from django.db.utils import load_backend
from pgtrigger import features, registry
from pgtrigger.migrations import RemoveTrigger

from pgembed_django.core import postgres
from pgembed_django.triggers import SpecTrigger, Watch, any_of, called, conditions, trigger_name
from pgembed_django.triggers.compiled import CompiledTrigger, literal

Dependency = tuple[str, str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How rows of another table lead to units.

    They are part of the texts of the units that the lookup ``path`` finds with the value that the
    row has in its column ``key``. A change of any of the ``columns`` matters.

    A row that is reached by its own foreign key (a comment, a through row) is named by that: the
    units before and after a change are those of both values, even if the row is gone. One that
    others point to is named by its primary key, and these have to change before it can go, unless
    another one takes its place: Django's constraints are tested at the commit. So each that goes is
    named. ``may_vanish``: it can also come while they point to it, under a key of its own or none
    that a constraint tests, or has the foreign key itself.
    """

    model: type[Model]
    path: str
    key: Any
    compared: Any
    """The field at the end of ``path``."""
    columns: tuple[Any, ...]
    may_vanish: bool

    def keys(self, *rows: str) -> str:
        """Return the SQL of the keys of these versions of a row."""
        return ", ".join(key_of(row, self.key.column) for row in rows)


def key_of(row: str, column: str) -> str:
    """Return the SQL of a column of a version of a row, as text."""
    return f"{row}.{postgres.quoted_name(column)}::text"


class RelatedTrigger(SpecTrigger):
    """A trigger on another table. ``model`` is never its own: see ``on``."""

    rows: ClassVar[tuple[str, ...]] = ()

    def __init__(self, watch: Watch, links: Sequence[Link]) -> None:
        super().__init__(watch)
        self.links = links
        self.on: Any = links[0].model
        """The model whose table the trigger is on."""
        # Unique among the triggers of the table, and among those in the state of the spec's model.
        of = f"{self.on._meta.label_lower}_{watch.key}"
        self.name = trigger_name(self.verb, of.replace(".", "_"))

    def compile(self, model: Any) -> CompiledTrigger:
        """Return the trigger that the migration of the spec's model contains."""
        compiled = super().compile(self.on)
        compiled.reads = tuple(dict.fromkeys(self._reads()))
        return compiled

    def register(self, *models: Any) -> None:
        """Register it: with its table for pgtrigger, with these models for their migrations."""
        options = self.on._meta
        own = options.original_attrs.get("triggers"), getattr(options, "triggers", None)
        registry.set(self.get_uri(self.on), model=self.on, trigger=self)
        if not features.migrations():  # type: ignore[no-untyped-call]
            return
        # The registry has added it to the other model, whose app would get the migration.
        for where, before in zip((options.original_attrs, vars(options)), own, strict=True):
            where.pop("triggers", None)
            if before is not None:
                where["triggers"] = before
        # Not in ``_meta.triggers``: where tables are made from models, the other may come later.
        for model in models:
            where = model._meta.original_attrs
            known = where.get("triggers", [])
            where["triggers"] = known if self in known else [*known, self]

    def clauses(self, model: type[Model]) -> list[str]:
        """Return the condition that one of the keys leads anywhere."""
        columns = [postgres.quoted_name(link.key.column) for link in self.links]
        keys = dict.fromkeys(f'"{row.lower()}".{name}' for row in self.rows for name in columns)
        return [any_of([f"{key} IS NOT NULL" for key in keys])]

    def get_func(self, model: Any) -> str:
        """Return the trigger's body: a call for each way that leads from the row to units."""
        calls = [self._ripple(link.path, link.keys(*self.rows)) for link in self.links]
        return "\n".join([*calls, "RETURN NULL;"])

    def _ripple(self, path: str, keys: str) -> str:
        call = called("pgembed_ripple_v1", literal(self.watch.key), literal(path), f"ARRAY[{keys}]")
        return f"PERFORM {call};"

    def _reads(self) -> Iterator[Dependency]:
        options = self.on._meta
        if creator := options.auto_created:
            for field in creator._meta.local_many_to_many:
                if field.remote_field.through is self.on:
                    yield creator._meta.app_label, creator._meta.model_name, field.name
            return
        yield options.app_label, options.model_name, None
        for link in self.links:
            for field in (link.key, *link.columns):
                yield options.app_label, options.model_name, field.name


class RelatedInserted(RelatedTrigger):
    """Fires when a row comes."""

    verb = "ripple_insert"
    operation = pgtrigger.Insert
    rows = ("NEW",)


class RelatedUpdated(RelatedTrigger):
    """Fires when a watched column changes, or one that links the row."""

    verb = "ripple_update"
    operation = pgtrigger.Update
    rows = ("OLD", "NEW")

    def clauses(self, model: type[Model]) -> list[str]:
        fields = [field for link in self.links for field in (link.key, *link.columns)]
        return [any_of([conditions.changed(field) for field in dict.fromkeys(fields)])]


class RelatedDeleted(RelatedTrigger):
    """Fires when a row goes."""

    verb = "ripple_delete"
    operation = pgtrigger.Delete
    rows = ("OLD",)


class RelatedTruncated(RelatedTrigger):
    """Fires when the table is truncated: all texts may have changed."""

    verb = "ripple_truncate"
    level = pgtrigger.Statement
    operation = pgtrigger.Truncate

    def clauses(self, model: type[Model]) -> list[str]:
        return []

    def get_func(self, model: Any) -> str:
        return f"{self._ripple('', literal(''))}\nRETURN NULL;"


def triggers(watch: Watch, links: Sequence[Link]) -> Iterator[RelatedTrigger]:
    """Yield the triggers of a spec on the other tables."""
    for table in dict.fromkeys(link.model._meta.db_table for link in links):
        of_table = [link for link in links if link.model._meta.db_table == table]
        yield RelatedUpdated(watch, of_table)
        yield RelatedDeleted(watch, of_table)
        if vanishing := [link for link in of_table if link.may_vanish]:
            for kind in (RelatedInserted, RelatedTruncated):
                yield kind(watch, vanishing)


class RelatedTables:
    """Lets makemigrations put triggers on other tables after what they read, and drop them."""

    def add_operation(
        self, app_label: str, operation: Any, dependencies: Any = None, beginning: bool = False
    ) -> None:
        """Let the operation wait for the other table and its columns, in whatever app."""
        reads = getattr(getattr(operation, "trigger", None), "reads", ())
        if reads:
            create: Any = OperationDependency.Type.CREATE
            needed = [OperationDependency(*one, create) for one in reads]  # type: ignore[call-arg]
            dependencies = [*(dependencies or ()), *needed]
        super().add_operation(app_label, operation, dependencies, beginning)  # type: ignore[misc]

    def generate_deleted_models(self) -> None:
        """First drop the triggers of a model that goes.

        Those on other tables would stay, and those on its own keep its columns from being dropped.
        """
        autodetector: Any = self
        for app_label, name in sorted(autodetector.old_model_keys - autodetector.new_model_keys):
            options = autodetector.from_state.models[app_label, name].options
            for trigger in options.get("triggers", ()):
                if isinstance(trigger, CompiledTrigger):
                    operation = RemoveTrigger(model_name=name, name=str(trigger.name))
                    autodetector.add_operation(app_label, operation)
        super().generate_deleted_models()  # type: ignore[misc]


class WatchedColumns:
    """Lets a migration of any app drop or rename what triggers on its table read for other apps.

    Their own migrations may come later. Postgres refuses to drop a column that a trigger reads, and
    without it there is no text to be kept fresh. Of a renamed column, it renames only what the
    trigger's condition reads. The type of one may change: pgtrigger sees to that.
    """

    DROP_READERS: ClassVar[str] = r"""
        DO $$
        DECLARE
            reader text;
        BEGIN
            FOR reader IN
                SELECT DISTINCT tgname
                FROM pg_catalog.pg_trigger
                JOIN pg_catalog.pg_depend
                  ON classid = 'pg_trigger'::regclass AND objid = pg_trigger.oid
                JOIN pg_catalog.pg_attribute ON attrelid = refobjid AND attnum = refobjsubid
                WHERE attrelid = to_regclass({table})
                  AND attname = {column}
                  AND tgname LIKE 'pgtrigger\_pgembed\_ripple\_%'
            LOOP
                EXECUTE pg_catalog.format('DROP TRIGGER %I ON ' || {table}, reader);
            END LOOP;
        END
        $$;
    """

    RENAME_IN_READERS: ClassVar[str] = r"""
        DO $$
        DECLARE
            reader oid;
        BEGIN
            FOR reader IN
                SELECT tgfoid
                FROM pg_catalog.pg_trigger
                WHERE tgrelid = to_regclass({table})
                  AND tgname LIKE 'pgtrigger\_pgembed\_ripple\_%'
            LOOP
                EXECUTE pg_catalog.replace(pg_catalog.pg_get_functiondef(reader), {old}, {new});
            END LOOP;
        END
        $$;
    """

    def remove_field(self, model: type[Model], field: Any) -> None:
        """Drop the triggers that read a field, then the field."""
        if field.column:
            self._run(self.DROP_READERS, model, column=field.column)
        super().remove_field(model, field)  # type: ignore[misc]

    def alter_field(
        self, model: type[Model], old_field: Any, new_field: Any, strict: bool = False
    ) -> None:
        """Alter a field. If it is renamed, so it is in the functions of triggers that read it."""
        super().alter_field(model, old_field, new_field, strict)  # type: ignore[misc]
        if old_field.column and new_field.column and old_field.column != new_field.column:
            read = [key_of("", one.column) for one in (old_field, new_field)]
            self._run(self.RENAME_IN_READERS, model, old=read[0], new=read[1])

    def _run(self, statement: str, model: type[Model], **values: str) -> None:
        values = {"table": postgres.quoted_name(model._meta.db_table), **values}
        for name, value in values.items():
            statement = statement.replace(f"{{{name}}}", literal(value))
        editor: Any = self
        editor.execute(statement, params=None)


def extend_migrations() -> None:
    """Let the commands and their schema editors use the above, as pgtrigger does with its own."""
    from django.core.management.commands import makemigrations, migrate

    for config in connections.databases.values():
        wrapper: Any = load_backend(config["ENGINE"]).DatabaseWrapper
        editor = wrapper.SchemaEditorClass
        if wrapper.vendor == "postgresql" and not issubclass(editor, WatchedColumns):
            extended: Any = type("DatabaseSchemaEditor", (WatchedColumns, editor), {})
            wrapper.SchemaEditorClass = extended
    base = makemigrations.Command.autodetector
    if issubclass(base, RelatedTables):
        return
    extended = type("MigrationAutodetector", (RelatedTables, base), {})
    module: Any
    for module in (makemigrations, migrate):
        # If pgtrigger's app is ready later, it derives its own from the first.
        module.MigrationAutodetector = extended
        module.Command.autodetector = extended
