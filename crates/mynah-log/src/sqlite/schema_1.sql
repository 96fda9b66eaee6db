-- What is known of each run; `key` grows with each run that comes. `recent` are the keys of its newest
-- records, eight bytes each.
CREATE TABLE runs (
    key           INTEGER PRIMARY KEY,
    id            TEXT    NOT NULL UNIQUE,
    status        INTEGER NOT NULL,
    started       INTEGER NOT NULL,
    updated       INTEGER NOT NULL,
    seq           INTEGER NOT NULL,
    hash          BLOB    NOT NULL,
    model         TEXT,
    session       TEXT,
    turns         INTEGER NOT NULL,
    tool_calls    INTEGER NOT NULL,
    input_tokens  INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cost          REAL,
    token         INTEGER NOT NULL,
    owner         TEXT,
    until         INTEGER,
    recent        BLOB    NOT NULL
) STRICT;
CREATE INDEX runs_by_start   ON runs (started);
CREATE INDEX runs_by_status  ON runs (status, started);
CREATE INDEX runs_by_session ON runs (session, started) WHERE session IS NOT NULL;

-- The keys of a run's older records, from a place on. An index of all records by run and place would be changed
-- all over by runs that grow side by side; this is written once for some dozens of records.
CREATE TABLE older (
    run  INTEGER NOT NULL,
    seq  INTEGER NOT NULL,
    keys BLOB    NOT NULL,
    PRIMARY KEY (run, seq)
) STRICT, WITHOUT ROWID;

-- In the order in which they come, so that pages fill up.
CREATE TABLE records (
    key      INTEGER PRIMARY KEY,
    envelope BLOB NOT NULL,
    salt     BLOB,
    payload  BLOB
) STRICT;

-- The leaves of the log's tree, from 0.
CREATE TABLE seals (
    place INTEGER PRIMARY KEY,
    id    TEXT NOT NULL UNIQUE,
    hash  BLOB NOT NULL
) STRICT;
