-- counters.db: counters and holds (synchronous = NORMAL).

-- Whose file this is, and the newest region time of a flush.
CREATE TABLE counter_meta (
    one       INTEGER PRIMARY KEY CHECK (one = 1),
    region    TEXT    NOT NULL,
    founder   INTEGER NOT NULL,
    last_time INTEGER
) STRICT;

-- Flushes that are not folded into the rows below yet.
CREATE TABLE journal (
    id      INTEGER PRIMARY KEY,
    at      INTEGER NOT NULL,
    records INTEGER NOT NULL,
    body    BLOB    NOT NULL
) STRICT;

-- One row per counter. `dead_at` stands before the body so that a sweep never reads a long body.
CREATE TABLE counters (
    id      BLOB    PRIMARY KEY,
    dead_at INTEGER NOT NULL,
    body    BLOB    NOT NULL
) STRICT, WITHOUT ROWID;

-- One row per hold.
CREATE TABLE holds (
    key       BLOB    PRIMARY KEY,
    forget_at INTEGER NOT NULL,
    version   INTEGER NOT NULL,
    body      BLOB    NOT NULL
) STRICT, WITHOUT ROWID;

-- Scratch space of the write that tries whether the disk works again; empty otherwise.
CREATE TABLE counter_probe (
    id   INTEGER PRIMARY KEY,
    fill BLOB    NOT NULL
) STRICT;
