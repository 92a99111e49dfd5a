-- A separate role for the API, the gateway and the workers, so that they can't change the
-- audit: `prego migrate` keeps using the owner of the tables, prego. Run this as that owner, in
-- its database, after a migration. The role must exist:
--   CREATE ROLE prego_app LOGIN BYPASSRLS PASSWORD '…'; GRANT CONNECT ON DATABASE prego TO prego_app;
GRANT prego_customer TO prego_app; -- which it becomes for customers' requests
GRANT USAGE ON SCHEMA public TO prego_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO prego_app;
GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO prego_app;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO prego_app;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT USAGE, SELECT ON SEQUENCES TO prego_app;
REVOKE INSERT, UPDATE, DELETE ON audit_entries, audit_chain, audit_unsealed, audit_checkpoints FROM prego_app;
