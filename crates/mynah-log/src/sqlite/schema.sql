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
CREATE INDEX runs_by_start   ON runs (started);
CREATE INDEX runs_by_status  ON runs (status, started);
CREATE INDEX runs_by_session ON runs (session, started) WHERE session IS NOT NULL;

-- The head, the totals and the newest keys of each run, packed: every append writes this row, and little else but the records.
CREATE TABLE heads (
    run   INTEGER PRIMARY KEY,
    state BLOB NOT NULL
) STRICT;

-- The packed keys of older records of a run, from a place on. An index of all records by run and place would be changed all over
-- by runs that grow side by side; this is written once for some dozens of records.
CREATE TABLE older (
    run  INTEGER NOT NULL,
    seq  INTEGER NOT NULL,
    keys BLOB    NOT NULL,
    PRIMARY KEY (run, seq)
) STRICT, WITHOUT ROWID;

-- In the order in which they were appended, so that pages fill up.
CREATE TABLE records (
    key      INTEGER PRIMARY KEY,
    envelope BLOB NOT NULL,
    salt     BLOB,
    payload  BLOB
) STRICT;

-- The leaves of the log's tree, from 0: the seals of its runs, and each record of its maintenance run.
CREATE TABLE seals (
    place INTEGER PRIMARY KEY,
    id    TEXT NOT NULL,
    hash  BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX seals_by_run ON seals (id) WHERE id <> 'log:maintenance';

-- The ids of runs that were pruned, which are not given again.
CREATE TABLE pruned (
    id TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

-- While there is a row, data that was removed up to this tombstone may still be in the write-ahead log.
CREATE TABLE unwiped (
    tombstone INTEGER PRIMARY KEY
) STRICT;
