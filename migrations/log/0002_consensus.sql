-- log.db: this directory's place in the cluster, and what consensus must find again after a power cut.
-- No backup carries any of these tables: a restored directory is a new voter with an empty log.

-- Who this directory is to the others. Minted at the first start that finds no row.
CREATE TABLE identity (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    voter   INTEGER NOT NULL,  -- 64 random bits
    cluster INTEGER            -- 64 random bits, set once: when the cluster is founded or joined
) STRICT;

-- The newest vote.
CREATE TABLE raft_vote (
    one          INTEGER PRIMARY KEY CHECK (one = 1),
    term         INTEGER NOT NULL,
    voter        INTEGER NOT NULL,
    is_committed INTEGER NOT NULL
) STRICT;

-- Places in the log: `committed`, as far as was known, and `purged`, up to which entries were deleted.
CREATE TABLE raft_marks (
    name TEXT    PRIMARY KEY,
    term INTEGER NOT NULL,
    idx  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The log after `purged`, without holes.
CREATE TABLE raft_log (
    idx  INTEGER PRIMARY KEY,
    term INTEGER NOT NULL,
    body BLOB    NOT NULL
) STRICT;

-- The newest snapshot of what the log drives.
CREATE TABLE raft_snapshot (
    one  INTEGER PRIMARY KEY CHECK (one = 1),
    idx  INTEGER NOT NULL,  -- of the newest entry in it
    meta BLOB    NOT NULL,
    body BLOB    NOT NULL
) STRICT;
