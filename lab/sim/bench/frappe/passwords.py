"""Passwords of users, kept as Frappe keeps them: PBKDF2 with SHA-256 in table __Auth."""

import base64
import hashlib
import hmac
import os

from frappe.database import query

ROUNDS = 29000


def encode(raw):
    return base64.b64encode(raw, altchars=b"./").decode().rstrip("=")


def decode(text):
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"./")


def hashed(password):
    salt = os.urandom(16)
    digest = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, ROUNDS)
    return f"$pbkdf2-sha256${ROUNDS}${encode(salt)}${encode(digest)}"


def matches(password, kept):
    try:
        _, kind, rounds, salt, digest = kept.split("$")
        got = hashlib.pbkdf2_hmac("sha256", password.encode(), decode(salt), int(rounds))
        return kind == "pbkdf2-sha256" and hmac.compare_digest(got, decode(digest))
    except ValueError:
        return False


def update(db, user, password):
    query(
        db,
        "INSERT INTO `__Auth` (doctype, name, fieldname, password, encrypted) VALUES ('User', %s, 'password', %s, 0) "
        "ON DUPLICATE KEY UPDATE password = VALUES(password), encrypted = 0",
        user,
        hashed(password),
    )


def check(db, user, password):
    """The user's name as it is kept, or None if the password is not theirs."""
    rows = query(
        db,
        "SELECT name, password FROM `__Auth` WHERE doctype = 'User' AND name = %s AND fieldname = 'password' AND encrypted = 0",
        user,
    )
    return rows[0][0] if rows and matches(password, rows[0][1]) else None
