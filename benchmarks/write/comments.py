"""Save comments one by one: rows of a table that the texts of another one's rows are made of."""

from __future__ import annotations

from benchmarks.write import single

STORIES = 10_000
TABLES = "related_author, related_story, related_story_tags, related_comment"
BEGIN = f"""
    SET CONSTRAINTS ALL IMMEDIATE;
    ALTER TABLE related_author DISABLE TRIGGER USER;
    ALTER TABLE related_story DISABLE TRIGGER USER;
    ALTER TABLE related_comment DISABLE TRIGGER USER;
    TRUNCATE {TABLES}, pgembed_ripple, pgembed_job RESTART IDENTITY;
    INSERT INTO related_author (name) VALUES ('The author of all');
    INSERT INTO related_story (title, author_id)
    SELECT 'Story ' || n, 1
    FROM generate_series(1, {STORIES}) AS n;
"""
OURS = """
    ALTER TABLE related_author ENABLE TRIGGER USER;
    ALTER TABLE related_story ENABLE TRIGGER USER;
    ALTER TABLE related_comment ENABLE TRIGGER USER;
"""


class Comments(single.Saves):
    """Measures new comments with a number of clients."""

    SCRIPT = rf"""
\set id random(1, {STORIES})
\set salt random(1, 1000000000)
INSERT INTO related_comment (story_id, body) VALUES (:id, 'Comment ' || :salt);
"""
    SPEC = "related.StoryEmbedding"
    WORK = "UPDATE related_author SET name = name || ' before'"

    def _begin(self, name: str) -> None:
        connection = self.table.connection
        connection.execute(BEGIN + (OURS if name == "ours" else ""))
        connection.execute("VACUUM ANALYZE related_story")
        connection.execute("CHECKPOINT")
