-- Run once, when the cluster is made: one role and its database for the control plane,
-- one role for Temporal, which makes its own two. Neither can read the other's.
-- Passwords come from files, so that they are in no process's arguments.
\set ON_ERROR_STOP on
\set prego_password `cat "$PREGO_DB_PASSWORD_FILE"`
\set temporal_password `cat "$TEMPORAL_DB_PASSWORD_FILE"`
CREATE ROLE prego LOGIN PASSWORD :'prego_password';
CREATE ROLE temporal LOGIN CREATEDB PASSWORD :'temporal_password';
-- What customers' requests run as; the owner grants it to other roles of processes.
CREATE ROLE prego_customer NOLOGIN;
GRANT prego_customer TO prego WITH ADMIN OPTION;
CREATE DATABASE prego OWNER prego;
REVOKE CONNECT, TEMPORARY ON DATABASE prego FROM PUBLIC;
