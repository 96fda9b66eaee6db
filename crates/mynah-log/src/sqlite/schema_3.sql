-- The leaves of the log's tree, from 0: the seals of its runs, and each record of its maintenance run.
CREATE TABLE leaves (
    place INTEGER PRIMARY KEY,
    id    TEXT NOT NULL,
    hash  BLOB NOT NULL
) STRICT;
INSERT INTO leaves SELECT place, id, hash FROM seals;
DROP TABLE seals;
ALTER TABLE leaves RENAME TO seals;
CREATE UNIQUE INDEX seals_by_run ON seals (id) WHERE id <> 'log:maintenance';
