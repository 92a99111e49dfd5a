"""The page and the API of sites, as gunicorn serves them: one application for all.

The site is chosen by header. Its page shows the site's name and how many rows its
database has of a kind, which the API adds.
"""

import html
import json
import mimetypes
import os
import re
import urllib.parse

from frappe import IncorrectSitePath, database, passwords, schema, site as sites
from frappe.database import query

SITES = os.environ.get("SITES_PATH", ".")

# MariaDB's error for what writes in a transaction that only reads, and what Frappe makes
# of it (frappe/database/database.py, sql; frappe/exceptions.py).
READ_ONLY = 1792
IN_READ_ONLY_MODE = (
    "Site is running in read only mode for maintenance or site update, this action can not be performed right now. Please try again later."
)

# frappe/core/api/file.py, get_max_file_size
MAX_FILE_SIZE = 25 * 1024 * 1024


class Refused(Exception):
    """An answer that is no success."""

    def __init__(self, status, kind, reason="", **more):
        super().__init__(reason)
        self.status = status
        self.body = {"exception": f"frappe.exceptions.{kind}: {reason}", "exc_type": kind, **more}


def application(environ, start_response):
    """The WSGI application."""
    request = Request(environ)
    try:
        site = open_site(request)
        try:
            status, headers, body = answer(site, request)
        finally:
            site.close()
    except IncorrectSitePath as err:
        status, headers, body = page("404 NOT FOUND", "404 Not Found", "Not Found", str(err))
    except Refused as err:
        status, headers, body = refusal(request, err)
    except Exception as err:
        kind = type(err).__name__
        failed = Refused("500 INTERNAL SERVER ERROR", kind, str(err))
        if err.args and err.args[0] == READ_ONLY:
            failed = Refused("503 SERVICE UNAVAILABLE", "InReadOnlyMode", IN_READ_ONLY_MODE)
        status, headers, body = refusal(request, failed)
    start_response(status, [*headers, ("Content-Length", str(len(body)))])
    return [b"" if request.method == "HEAD" else body]


class Request:
    """What is asked for."""

    def __init__(self, environ):
        self.environ = environ
        self.method = environ["REQUEST_METHOD"]
        self.path = environ.get("PATH_INFO", "/")
        host = environ.get("HTTP_X_FRAPPE_SITE_NAME") or environ.get("HTTP_HOST", "").split(":", 1)[0]
        self.site = host

    def fields(self):
        """The fields of query and body, whether form or JSON."""
        out = dict(urllib.parse.parse_qsl(self.environ.get("QUERY_STRING", "")))
        body = self.environ["wsgi.input"].read(int(self.environ.get("CONTENT_LENGTH") or 0)).decode()
        if "json" in self.environ.get("CONTENT_TYPE", ""):
            out.update(json.loads(body or "{}"))
        else:
            out.update(urllib.parse.parse_qsl(body))
        return out

    def session(self):
        for part in self.environ.get("HTTP_COOKIE", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == "sid":
                return value
        return ""


def open_site(request):
    os.chdir(SITES)
    if not request.site or "/" in request.site or request.site in (".", ".."):
        raise IncorrectSitePath(request.site + " does not exist")
    site = sites.Site(request.site)
    if not site.conf.get("db_name"):
        raise IncorrectSitePath(request.site + " does not exist")
    if site.conf.get("maintenance_mode") and not site.conf.get("allow_reads_during_maintenance"):
        raise Refused("503 SERVICE UNAVAILABLE", "SessionStopped", "Session Stopped")
    site.connect()
    if site.conf.get("maintenance_mode"):
        # frappe/app.py, setup_read_only_mode; frappe/database/database.py, begin
        query(site.db, "START TRANSACTION READ ONLY")
    query(site.db, "SELECT 1")
    return site


def answer(site, request):
    path = request.path
    if path == "/api/method/ping":
        return as_json({"message": "pong"})
    if path == "/api/method/login":
        return login(site, request.fields())
    if path == "/api/method/frappe.auth.get_logged_user":
        return as_json({"message": logged_in(site, request)})
    if path == "/api/method/frappe.client.get_count":
        logged_in(site, request)
        doctype = request.fields().get("doctype", "")
        if "tab" + doctype not in schema.tables(site.db):
            raise Refused("404 NOT FOUND", "DoesNotExistError", f"DocType {doctype} not found")
        return as_json({"message": query(site.db, f"SELECT COUNT(*) FROM `tab{doctype}`")[0][0]})
    if path == "/api/resource/ToDo" and request.method == "POST":
        user, name = logged_in(site, request), database.random_text(10).lower()
        text = request.fields().get("description", "")
        schema.insert(site.db, "ToDo", name=name, description=text, status="Open", owner=user)
        return as_json({"data": {"name": name, "description": text, "owner": user, "doctype": "ToDo"}})
    if path == "/api/method/upload_file" and request.method == "POST":
        return upload(site, request)
    if path.startswith("/api/"):
        raise Refused("417 EXPECTATION FAILED", "ValidationError", f"Failed to get method for command {path}")
    if path.startswith("/files/"):
        return public_file(site, path)
    if path.startswith("/private/files/"):
        raise Refused("403 FORBIDDEN", "PermissionError", "You don't have permission to access this file")
    if path in ("/", "/login", "/app"):
        return home(site)
    return page("404 NOT FOUND", "Not Found", "Page not found", "The resource you are looking for is not available")


def home(site):
    rows = query(site.db, "SELECT COUNT(*) FROM tabToDo")[0][0]
    return page("200 OK", site.name, site.name, f"rows: {rows}")


def login(site, fields):
    user, password = fields.get("usr"), fields.get("pwd")
    if not user or not password:
        raise Refused("401 UNAUTHORIZED", "AuthenticationError", message="Incomplete login details")
    name = passwords.check(site.db, user, password)
    rows = query(site.db, "SELECT first_name, last_name, enabled FROM tabUser WHERE name = %s", name) if name else ()
    if not rows or not rows[0][2]:
        raise Refused("401 UNAUTHORIZED", "AuthenticationError", message="Invalid login credentials")
    sid = os.urandom(28).hex()
    query(site.db, "INSERT INTO tabSessions (user, sid, lastupdate) VALUES (%s, %s, NOW(6))", name, sid)
    full = " ".join(part for part in rows[0][:2] if part)
    status, headers, body = as_json({"message": "Logged In", "home_page": "/app", "full_name": full})
    return status, [*headers, ("Set-Cookie", f"sid={sid}; HttpOnly; Path=/; SameSite=Lax")], body


def logged_in(site, request):
    rows = query(site.db, "SELECT user FROM tabSessions WHERE sid = %s", request.session())
    if not rows:
        raise Refused("403 FORBIDDEN", "PermissionError", "You are not permitted to access this resource.")
    return rows[0][0]


def upload(site, request):
    """Takes a form of one file (frappe/handler.py, upload_file), which is private."""
    logged_in(site, request)
    environ = request.environ
    body, left = environ["wsgi.input"], int(environ.get("CONTENT_LENGTH") or 0)
    boundary = b"--" + environ.get("CONTENT_TYPE", "").partition("boundary=")[2].encode()
    head = b""
    while left and not head.endswith(b"\r\n\r\n"):
        line = body.readline(min(left, 65536))
        head, left = head + line, left - len(line)
    size = left - len(b"\r\n" + boundary + b"--\r\n")
    name = re.search(rb'filename="([\w.-]+)"', head)
    if not head.startswith(boundary + b"\r\n") or not name or size < 0:
        raise Refused("417 EXPECTATION FAILED", "ValidationError", "one file is expected")
    name = name.group(1).decode()
    limit = int(site.conf.get("max_file_size") or MAX_FILE_SIZE)
    kept = os.devnull if size > limit else site.file("private", "files", name)
    os.makedirs(site.file("private", "files"), exist_ok=True)
    with open(kept, "wb") as f:
        for at in range(0, size, 1 << 20):
            f.write(body.read(min(1 << 20, size - at)))
    body.read(left - size)
    if size > limit:
        raise Refused("417 EXPECTATION FAILED", "MaxFileSizeReachedError", f"File size exceeded the maximum allowed size of {limit / 1048576} MB")
    return as_json({"message": {"file_name": name, "file_url": "/private/files/" + name, "file_size": os.path.getsize(kept), "is_private": 1}})


def public_file(site, path):
    folder = os.path.realpath(site.file("public", "files"))
    name = os.path.realpath(os.path.join(folder, path.removeprefix("/files/")))
    if not name.startswith(folder + os.sep) or not os.path.isfile(name):
        return page("404 NOT FOUND", "Not Found", "Page not found", "The resource you are looking for is not available")
    with open(name, "rb") as f:
        return "200 OK", [("Content-Type", mimetypes.guess_type(name)[0] or "application/octet-stream")], f.read()


def refusal(request, err):
    if request.path.startswith("/api/"):
        return as_json(err.body, err.status)
    return page(err.status, err.status.title(), err.body["exc_type"], str(err))


def as_json(value, status="200 OK"):
    return status, [("Content-Type", "application/json")], json.dumps(value).encode()


def page(status, title, heading, text):
    shown = f"<!doctype html>\n<html lang=en>\n<title>{html.escape(title)}</title>\n<h1>{html.escape(heading)}</h1>\n<p>{html.escape(text)}</p>\n"
    return status, [("Content-Type", "text/html; charset=utf-8")], shown.encode()
