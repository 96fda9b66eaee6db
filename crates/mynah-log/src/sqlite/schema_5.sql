-- Where the records of each run end and what they come to, packed: every append writes it, and little else but the records.
CREATE TABLE heads (
    run   INTEGER PRIMARY KEY,
    state BLOB NOT NULL
) STRICT;

-- The keys of older records, packed.
ALTER TABLE older RENAME TO unpacked;
CREATE TABLE older (
    run  INTEGER NOT NULL,
    seq  INTEGER NOT NULL,
    keys BLOB    NOT NULL,
    PRIMARY KEY (run, seq)
) STRICT, WITHOUT ROWID;
