package rooted

import (
	"fmt"
	"strings"

	"github.com/prego/prego/agent/policy"
)

// databaseName is what the procedures take for a tenant's database: OURDB of the table of
// allowed commands. PCRE's $ would let a newline follow.
const databaseName = `(?-i)^(pool_[a-z0-9_]{1,58}|tenant_[a-z0-9_]{1,54}_db)\\z`

// grantsSQL creates the procedures of a shard, and lets the executor's user call them.
//
// A tenant's user has its database's name. It may connect from one address only, over TLS, with a certificate of its
// app server: REQUIRE SUBJECT implies TLS, and a certificate of the CA that the server trusts. Its rights are on the
// one database, whose underscores would otherwise stand for any character. The rights are Frappe's
// (frappe/database/db_manager.py, grant_all_privileges), and let the user empty the database by dropping and creating
// it.
func grantsSQL(user string) []string {
	refuse := func(condition, what string) string {
		return "IF " + condition + " THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = '" + what + "'; END IF; "
	}
	noDatabase := refuse("name IS NULL OR name NOT REGEXP '"+databaseName+"'", "this is no database of a tenant")
	procedure := func(name, body string) string {
		// One line: MariaDB reads its init file so.
		return "CREATE OR REPLACE DEFINER = root@localhost PROCEDURE prego." + name + " SQL SECURITY DEFINER BEGIN " + body + "END"
	}
	account := "CONCAT('`', name, '`@`', address, '`')"
	noUser := refuse(`address NOT REGEXP '^([0-9]{1,3}\\.){3}[0-9]{1,3}\\z' OR client NOT REGEXP '^[A-Za-z0-9][A-Za-z0-9._-]*\\z' OR hash NOT REGEXP '^\\*[0-9A-F]{40}\\z'`, "this is no user of a tenant")
	grantAll := `EXECUTE IMMEDIATE CONCAT('GRANT ALL PRIVILEGES ON ` + "`', REPLACE(name, '_', '\\\\_'), '`" + `.* TO ', ` + account + `); `
	dropUsers := func(except string) string {
		return "WHILE EXISTS (SELECT 1 FROM mysql.user WHERE User = name" + except + ") DO " +
			"SELECT Host INTO old FROM mysql.user WHERE User = name" + except + " LIMIT 1; " +
			"EXECUTE IMMEDIATE CONCAT('DROP USER `', name, '`@`', old, '`'); END WHILE; "
	}
	return []string{
		"CREATE DATABASE IF NOT EXISTS prego",
		procedure("grant_database(name VARCHAR(64), address VARCHAR(15), client VARCHAR(64), hash VARCHAR(41), earlier VARCHAR(41))",
			"DECLARE old VARCHAR(255); DECLARE how TEXT; "+noDatabase+
				noUser+refuse(`earlier NOT REGEXP '^(\\*[0-9A-F]{40})?\\z'`, "this is no user of a tenant")+
				"SET how = CONCAT(' IDENTIFIED VIA mysql_native_password USING ''', hash, '''', IF(earlier = '', '', CONCAT(' OR mysql_native_password USING ''', earlier, '''')), ' REQUIRE SUBJECT ''/CN=', client, ''''); "+
				"EXECUTE IMMEDIATE CONCAT('CREATE DATABASE IF NOT EXISTS `', name, '` CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci'); "+
				dropUsers(" AND Host <> address")+
				"EXECUTE IMMEDIATE CONCAT('CREATE USER IF NOT EXISTS ', "+account+", how); "+
				"EXECUTE IMMEDIATE CONCAT('ALTER USER ', "+account+", how); "+
				grantAll),
		// While a site moves, its next server is admitted beside the present one. If both come from one address, as
		// behind a translation of addresses, either certificate will do until grant_database names one of them again.
		procedure("admit_database(name VARCHAR(64), address VARCHAR(15), client VARCHAR(64), hash VARCHAR(41))",
			noDatabase+noUser+
				refuse("NOT EXISTS (SELECT 1 FROM information_schema.schemata WHERE schema_name = name)", "there is no such database")+
				"IF NOT EXISTS (SELECT 1 FROM mysql.user WHERE User = name AND Host = address) THEN "+
				"EXECUTE IMMEDIATE CONCAT('CREATE USER ', "+account+", ' IDENTIFIED VIA mysql_native_password USING ''', hash, ''' REQUIRE SUBJECT ''/CN=', client, ''''); "+
				grantAll+
				"ELSEIF NOT EXISTS (SELECT 1 FROM mysql.user WHERE User = name AND Host = address AND BINARY x509_subject = BINARY CONCAT('/CN=', client)) THEN "+
				"EXECUTE IMMEDIATE CONCAT('ALTER USER ', "+account+", ' REQUIRE X509'); END IF; "),
		// While a database moves to another server it must not be written to: its users keep the rights to read. A
		// session has the rights of its beginning, so earlier sessions must end. Reading requests get a second for
		// it; then the rest is ended, and its changes rolled back. thaw_database restores the rights. Reading
		// triggers, as the copy does, needs the right to create them; writes of triggers are also refused.
		procedure("freeze_database(name VARCHAR(64))",
			"DECLARE newest BIGINT; DECLARE n INT DEFAULT 0; DECLARE CONTINUE HANDLER FOR 1094 BEGIN END; "+noDatabase+
				"FOR u IN (SELECT Host FROM mysql.db WHERE User = name AND Db = REPLACE(name, '_', '\\_')) DO "+
				"EXECUTE IMMEDIATE CONCAT('REVOKE INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX, REFERENCES, EVENT, CREATE VIEW, CREATE ROUTINE, ALTER ROUTINE, EXECUTE, CREATE TEMPORARY TABLES, LOCK TABLES, DELETE HISTORY, GRANT OPTION ON `', REPLACE(name, '_', '\\_'), '`.* FROM `', name, '`@`', u.Host, '`'); END FOR; "+
				"SELECT COALESCE(MAX(ID), 0) INTO newest FROM information_schema.processlist; "+
				"WHILE EXISTS (SELECT 1 FROM information_schema.processlist WHERE User = name AND ID <= newest) DO "+
				"IF n >= 20 THEN FOR s IN (SELECT ID FROM information_schema.processlist WHERE User = name AND ID <= newest) DO EXECUTE IMMEDIATE CONCAT('KILL HARD CONNECTION ', s.ID); END FOR; END IF; "+
				refuse("n > 400", "sessions from before do not end")+
				"DO SLEEP(0.05); SET n = n + 1; END WHILE; "),
		procedure("thaw_database(name VARCHAR(64))", noDatabase+
			"FOR u IN (SELECT Host FROM mysql.db WHERE User = name AND Db = REPLACE(name, '_', '\\_')) DO "+
			"EXECUTE IMMEDIATE CONCAT('GRANT ALL PRIVILEGES ON `', REPLACE(name, '_', '\\_'), '`.* TO `', name, "+
			"'`@`', u.Host, '`'); END FOR; "),
		// The users first, so that none reconnects after the end of their session. A session with an open transaction
		// would hold up the DROP for a day.
		procedure("erase_database(name VARCHAR(64))",
			"DECLARE old VARCHAR(255); "+noDatabase+dropUsers("")+
				"EXECUTE IMMEDIATE CONCAT('KILL HARD CONNECTION USER `', name, '`'); "+
				"EXECUTE IMMEDIATE CONCAT('DROP DATABASE IF EXISTS `', name, '`'); "),
		fmt.Sprintf("GRANT EXECUTE ON PROCEDURE prego.grant_database TO %s", user),
		fmt.Sprintf("GRANT EXECUTE ON PROCEDURE prego.admit_database TO %s", user),
		fmt.Sprintf("GRANT EXECUTE ON PROCEDURE prego.freeze_database TO %s", user),
		fmt.Sprintf("GRANT EXECUTE ON PROCEDURE prego.thaw_database TO %s", user),
		fmt.Sprintf("GRANT EXECUTE ON PROCEDURE prego.erase_database TO %s", user),
	}
}

// isTenantsUser reports whether a line of users.acl belongs to a tenant's user.
func isTenantsUser(line string) bool {
	words := strings.Fields(line)
	return len(words) > 2 && words[0] == "user" && policy.Is("OURDB", words[1])
}
