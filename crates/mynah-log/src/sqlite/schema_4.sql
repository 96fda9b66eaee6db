-- While there is a row, what was taken away up to this tombstone may still lie in the write-ahead log.
CREATE TABLE unwiped (
    tombstone INTEGER PRIMARY KEY
) STRICT;
