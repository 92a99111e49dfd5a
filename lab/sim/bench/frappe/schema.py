"""The tables of a site: those that the command line, the page and the tests use."""

from frappe.database import query

OPTIONS = "ENGINE=InnoDB CHARACTER SET=utf8mb4 COLLATE=utf8mb4_unicode_ci"
DOCUMENT = "`name` VARCHAR(140) NOT NULL PRIMARY KEY, `creation` DATETIME(6), `modified` DATETIME(6), `owner` VARCHAR(140)"
CHILD = DOCUMENT + ", `parent` VARCHAR(140), `parentfield` VARCHAR(140), `parenttype` VARCHAR(140), `idx` INT NOT NULL DEFAULT 0"

# What there is before the app frappe is installed, and what its installation adds.
BASE = {
    "tabSingles": "`doctype` VARCHAR(255), `field` VARCHAR(255), `value` LONGTEXT, KEY (`doctype`, `field`)",
    "tabDefaultValue": CHILD + ", `defkey` VARCHAR(255), `defvalue` TEXT, KEY (`parent`, `defkey`)",
    "tabFile": DOCUMENT + ", `file_name` VARCHAR(255), `file_url` VARCHAR(255), `file_size` INT NOT NULL DEFAULT 0, `is_private` INT NOT NULL DEFAULT 0",
    "tabSessions": "`user` VARCHAR(255), `sid` VARCHAR(255), `lastupdate` DATETIME(6), KEY (`sid`)",
    "__Auth": "`doctype` VARCHAR(140) NOT NULL, `name` VARCHAR(255) NOT NULL, `fieldname` VARCHAR(140) NOT NULL, `password` TEXT NOT NULL, "
    "`encrypted` INT NOT NULL DEFAULT 0, PRIMARY KEY (`doctype`, `name`, `fieldname`)",
}
OF_FRAPPE = {
    "tabUser": DOCUMENT + ", `email` VARCHAR(140), `first_name` VARCHAR(140), `last_name` VARCHAR(140), "
    "`user_type` VARCHAR(140), `enabled` INT NOT NULL DEFAULT 1",
    "tabHas Role": CHILD + ", `role` VARCHAR(140)",
    "tabInstalled Application": CHILD + ", `app_name` VARCHAR(140), `app_version` VARCHAR(140), `git_branch` VARCHAR(140)",
    "tabToDo": DOCUMENT + ", `description` TEXT, `status` VARCHAR(140)",
    "tabScheduled Job Log": DOCUMENT + ", `status` VARCHAR(140), `scheduled_job_type` VARCHAR(140)",
}

ROLES = ("Administrator", "System Manager", "Desk User", "Report Manager", "Script Manager", "Website Manager", "Workspace Manager")


def create(db, tables):
    for name, columns in tables.items():
        query(db, f"CREATE TABLE IF NOT EXISTS `{name}` ({columns}) {OPTIONS}")


def tables(db):
    return [row[0] for row in query(db, "SHOW TABLES")]


def single(db, doctype, field):
    rows = query(db, "SELECT value FROM tabSingles WHERE doctype = %s AND field = %s", doctype, field)
    return rows[0][0] if rows else None


def set_single(db, doctype, field, value):
    query(db, "DELETE FROM tabSingles WHERE doctype = %s AND field = %s", doctype, field)
    query(db, "INSERT INTO tabSingles (doctype, field, value) VALUES (%s, %s, %s)", doctype, field, str(value))


def insert(db, doctype, **values):
    values.setdefault("owner", "Administrator")
    columns = ", ".join(f"`{c}`" for c in values)
    marks = ", ".join(["%s"] * len(values))
    query(db, f"INSERT INTO `tab{doctype}` ({columns}, creation, modified) VALUES ({marks}, NOW(6), NOW(6))", *values.values())
