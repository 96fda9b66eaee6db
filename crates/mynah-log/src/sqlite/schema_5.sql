-- The tables as they were are copied, and go once what was in them is packed. What somebody else hung on them, an index or a
-- trigger, goes with them.
ALTER TABLE runs RENAME TO runs_4;
ALTER TABLE older RENAME TO older_4;
DROP INDEX IF EXISTS runs_by_start;
DROP INDEX IF EXISTS runs_by_status;
DROP INDEX IF EXISTS runs_by_session;

-- What is known of each run beside its records; `key` grows with each run that comes.
CREATE TABLE runs (
    key     INTEGER PRIMARY KEY,
    id      TEXT    NOT NULL UNIQUE,
    status  INTEGER NOT NULL,
    started INTEGER NOT NULL,
    model   TEXT,
    session TEXT,
    token   INTEGER NOT NULL,
    owner   TEXT,
    until   INTEGER
) STRICT;
INSERT INTO runs SELECT key, id, status, started, model, session, token, owner, until FROM runs_4;
CREATE INDEX runs_by_start   ON runs (started);
CREATE INDEX runs_by_status  ON runs (status, started);
CREATE INDEX runs_by_session ON runs (session, started) WHERE session IS NOT NULL;

-- Where the records of each run end and what they come to, packed: every append writes it, and little else but the records.
CREATE TABLE heads (
    run   INTEGER PRIMARY KEY,
    state BLOB NOT NULL
) STRICT;

-- The keys of older records, packed.
CREATE TABLE older (
    run  INTEGER NOT NULL,
    seq  INTEGER NOT NULL,
    keys BLOB    NOT NULL,
    PRIMARY KEY (run, seq)
) STRICT, WITHOUT ROWID;
