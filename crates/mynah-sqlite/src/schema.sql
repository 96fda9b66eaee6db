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
    -- The queue, the priority, the concurrency key and its limit; null for runs that are not for workers.
    queue    TEXT,
    priority INTEGER,
    shared   TEXT,
    at_most  INTEGER,
    -- From when on the run can continue, in nanoseconds: the least number for at once, the greatest for not by itself.
    wake    INTEGER NOT NULL
) STRICT;
CREATE INDEX runs_by_start   ON runs (started);
CREATE INDEX runs_by_status  ON runs (status, started);
CREATE INDEX runs_by_session ON runs (session, started) WHERE session IS NOT NULL;
CREATE INDEX runs_ready      ON runs (queue, priority DESC, started, key) WHERE queue IS NOT NULL AND wake <= 0;
CREATE INDEX runs_asleep     ON runs (queue, wake) WHERE queue IS NOT NULL AND wake > 0 AND status < 2;
CREATE INDEX runs_held       ON runs (shared) WHERE shared IS NOT NULL AND owner IS NOT NULL;

-- Until when the last sign of life of a process counts, which keeps all runs whose owner's name begins with its own and a slash.
CREATE TABLE beats (
    process TEXT    PRIMARY KEY,
    until   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Messages for runs. Of those that were consumed the id stays, so that none is delivered twice.
CREATE TABLE inbox (
    key     INTEGER PRIMARY KEY AUTOINCREMENT,
    run     INTEGER NOT NULL,
    id      TEXT    NOT NULL,
    at      INTEGER NOT NULL,
    payload BLOB,
    UNIQUE (run, id)
) STRICT;

-- Parts of answers in flight: events from a place on, after the record `seq`. The next append to the run removes them.
CREATE TABLE parts (
    run     INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    first   INTEGER NOT NULL,
    count   INTEGER NOT NULL,
    payload BLOB    NOT NULL,
    PRIMARY KEY (run, seq, first)
) STRICT, WITHOUT ROWID;

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

-- In the order in which they were appended, so that pages fill up. The envelope is packed, or whole: see `Record::pack`.
CREATE TABLE records (
    key      INTEGER PRIMARY KEY,
    run      INTEGER NOT NULL,
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
