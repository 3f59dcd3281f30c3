-- A shop, for the snapshots of tests/it/import/shown.rs.
CREATE TABLE plans (id int PRIMARY KEY, name text NOT NULL UNIQUE);
CREATE TABLE users (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, email text NOT NULL,
    plan_id int NOT NULL REFERENCES plans, referrer_id int REFERENCES users);
CREATE UNIQUE INDEX users_email ON users (lower(email));
CREATE TABLE orders (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, number serial UNIQUE,
    user_id int NOT NULL REFERENCES users, note text);
CREATE INDEX orders_note ON orders USING gin (to_tsvector('simple', note));
CREATE TABLE order_lines (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id int NOT NULL REFERENCES orders, amount int NOT NULL);
CREATE TABLE order_tags (order_id int NOT NULL REFERENCES orders, tag text NOT NULL,
    UNIQUE (order_id, tag));
CREATE TABLE messages (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    sender_id int NOT NULL REFERENCES users, recipient_id int NOT NULL REFERENCES users);
CREATE TABLE attachments (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner_type text NOT NULL, owner_id bigint NOT NULL);
CREATE TABLE warehouses (id int PRIMARY KEY, city text);
CREATE VIEW totals AS SELECT order_id, sum(amount) FROM order_lines GROUP BY order_id;
INSERT INTO plans VALUES (1, 'free');
INSERT INTO users (email, plan_id, referrer_id) SELECT n || '@example.org', 1, nullif(n - 1, 0)
    FROM generate_series(1, 100) n;
INSERT INTO orders (user_id, note) SELECT n, 'a' FROM generate_series(1, 100) n;
INSERT INTO order_lines (order_id, amount) SELECT n, n FROM generate_series(1, 100) n;
INSERT INTO messages (sender_id, recipient_id) SELECT n, 101 - n FROM generate_series(1, 100) n;
INSERT INTO attachments (owner_type, owner_id) SELECT 'Order', n FROM generate_series(1, 50) n;
INSERT INTO attachments (owner_type, owner_id) SELECT 'Message', n FROM generate_series(1, 50) n;
