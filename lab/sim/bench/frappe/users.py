"""Users of a site."""

import re

from frappe import DuplicateEntryError, InvalidEmailAddressError, passwords, schema
from frappe.database import query, random_text

ADDRESS = re.compile(r"[^@\s,;<>]+@[^@\s,;<>]+\.[^@\s,;<>]+")


def exists(db, user):
    return bool(query(db, "SELECT 1 FROM tabUser WHERE name = %s", user))


def add(db, email, first_name, last_name, password, roles, user_type="System User"):
    if not ADDRESS.fullmatch(email):
        raise InvalidEmailAddressError(email + " is not a valid Email Address")
    email = email.lower()
    if exists(db, email):
        raise DuplicateEntryError("User", email, "Duplicate entry")
    with transaction(db):
        schema.insert(db, "User", name=email, email=email, first_name=first_name or email, last_name=last_name, user_type=user_type, enabled=1)
        for role in roles:
            give_role(db, email, role)
        if password:
            passwords.update(db, email, password)


def give_role(db, user, role):
    schema.insert(db, "Has Role", name=random_text(10), parent=user, parentfield="roles", parenttype="User", role=role)


class transaction:
    """All or nothing of what is written within."""

    def __init__(self, db):
        self.db = db

    def __enter__(self):
        self.db.begin()

    def __exit__(self, kind, err, trace):
        self.db.rollback() if kind else self.db.commit()
