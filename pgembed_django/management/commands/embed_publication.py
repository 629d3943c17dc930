"""``manage.py embed_publication``: print the SQL that publishes tables whose owner is another."""

from __future__ import annotations

from typing import Any

from pgembed_django.models import publication
from pgembed_django.ops.command import EmbedCommand, cannot_start


class Command(EmbedCommand):
    help = (
        "Prints the SQL that makes the publication, and adds the tables of specs with "
        "capture='wal' by their keys. For the owner of the tables, if that is not the role that "
        "migrates: then name the publication by PGEMBED_PUBLICATION. Running it again adds what "
        "is missing. It locks each table until open writers have ended. "
        "Exit status: 0 printed; 2 could not start."
    )

    def handle(self, **options: Any) -> None:
        using = self.chosen_database(options["database"], writes=False)
        chosen = self.chosen_specs(options["specs"], using=using).values()
        published = [spec for spec in chosen if spec.capture == "wal"]
        if not any(spec.is_read_from_log for spec in chosen):
            raise cannot_start("None of these specs has capture='wal' or 'message'.")
        self.stdout.write("BEGIN;")
        for statement in publication.statements(spec.model for spec in published):
            self.stdout.write(statement)
        self.stdout.write("COMMIT;")
