-- Runs that were taken out: their ids are not given again.
CREATE TABLE pruned (
    id TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;
