-- What every shard of the photo app holds. A user and all of his photos are on the shard of his number; a like is on the
-- shard of the photo that it is for.

CREATE TABLE {shard}.users (
    id   bigint PRIMARY KEY,                          -- the account's number, given by the sign-up service
    name text NOT NULL
);

CREATE TABLE {shard}.photos (
    id      bigint PRIMARY KEY DEFAULT {shard}.next_id(),
    user_id bigint NOT NULL REFERENCES {shard}.users,
    title   text NOT NULL,
    likes   integer NOT NULL DEFAULT 0
);
-- IDs begin with their time: "of last week" is a range of this index.
CREATE INDEX ON {shard}.photos (user_id, id);

CREATE TABLE {shard}.likes (
    photo_id bigint NOT NULL REFERENCES {shard}.photos ON DELETE CASCADE,
    user_id  bigint NOT NULL,                         -- lives on another shard, so no foreign key
    PRIMARY KEY (photo_id, user_id)
);
