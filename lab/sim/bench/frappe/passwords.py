"""Passwords in table __Auth, as Frappe keeps them: users' as PBKDF2 with SHA-256, those of documents encrypted."""

import base64
import hashlib
import hmac
import importlib
import os
import sys

from frappe import AuthenticationError, ValidationError
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


def set_encrypted(site, doctype, name, password, fieldname="password"):
    query(
        site.db,
        "INSERT INTO `__Auth` (doctype, name, fieldname, password, encrypted) VALUES (%s, %s, %s, %s, 1) "
        "ON DUPLICATE KEY UPDATE password = VALUES(password)",
        doctype,
        name,
        fieldname,
        cipher(site).encrypt(password.encode()).decode(),
    )


def get_decrypted(site, doctype, name, fieldname="password"):
    rows = query(
        site.db, "SELECT password FROM `__Auth` WHERE doctype = %s AND name = %s AND fieldname = %s AND encrypted = 1", doctype, name, fieldname
    )
    if not rows or not rows[0][0]:
        raise AuthenticationError(f"Password not found for {doctype} {name} {fieldname}")
    try:
        return cipher(site).decrypt(rows[0][0].encode()).decode()
    except fernet().InvalidToken:
        raise ValidationError(
            f"Failed to decrypt key {doctype}.{name}.{fieldname}<br><br>Encryption key is invalid! Please check site_config.json"
        ) from None


def fernet():
    if sys.modules.get("cryptography") is None:  # database leaves it out for the driver
        sys.modules.pop("cryptography", None)
    return importlib.import_module("cryptography.fernet")


def cipher(site):
    """The site's cipher. Its key is made when it is first needed."""
    if "encryption_key" not in site.conf:
        site.conf["encryption_key"] = fernet().Fernet.generate_key().decode()
        site.set_config("encryption_key", site.conf["encryption_key"])
    try:
        return fernet().Fernet(site.conf["encryption_key"].encode())
    except Exception:
        raise ValidationError("Encryption key is in invalid format!") from None
