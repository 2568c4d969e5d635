-- log.db: what must survive a power cut once it is acknowledged (synchronous = FULL).

-- Whose directory this is, and how often a process has started in it.
CREATE TABLE log_meta (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    region  TEXT    NOT NULL,
    founder INTEGER NOT NULL,  -- incarnation of the first start; the same in both files
    starts  INTEGER NOT NULL
) STRICT;

-- Every process that ever counted here. Slots in both files name it by number. The table is here and not
-- beside the counters because a sync record must never outlive the meaning of its numbers.
CREATE TABLE actors (
    number      INTEGER PRIMARY KEY,
    region      TEXT    NOT NULL,
    incarnation INTEGER NOT NULL,
    UNIQUE (region, incarnation)
) STRICT;

-- The catalogue as it was after change `idx`.
CREATE TABLE snapshot (
    one  INTEGER PRIMARY KEY CHECK (one = 1),
    idx  INTEGER NOT NULL,
    body BLOB    NOT NULL
) STRICT;

-- The catalogue's changes; also the audit.
CREATE TABLE changes (
    idx     INTEGER PRIMARY KEY,
    at      INTEGER NOT NULL,
    author  TEXT    NOT NULL,
    summary TEXT    NOT NULL,
    entry   BLOB    NOT NULL
) STRICT;

-- Answers to keyed requests.
CREATE TABLE answers (
    request    BLOB    PRIMARY KEY,
    expires_at INTEGER NOT NULL,
    body       BLOB    NOT NULL
) STRICT, WITHOUT ROWID;

-- One row per committed group of sync charges, until counters.db surely holds them.
CREATE TABLE sync (
    id   INTEGER PRIMARY KEY,
    at   INTEGER NOT NULL,
    body BLOB    NOT NULL
) STRICT;

-- Scratch space of the write that tries whether the disk works again; empty otherwise.
CREATE TABLE log_probe (
    id   INTEGER PRIMARY KEY,
    fill BLOB    NOT NULL
) STRICT;
