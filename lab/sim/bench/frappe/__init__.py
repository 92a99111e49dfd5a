"""A stand-in for Frappe 15: what a site host sees of it, and none of its application.

It has the command line, files, databases and web page of a Frappe bench, written from
observed behaviour: contributing/frappe.md lists each behaviour and where in Frappe it was read.
The package has Frappe's name because the programs of its images name it.
"""

import threading

__version__ = "15.55.1"

# The site that this thread has open: its conf, and flags.
local = threading.local()

# One for the process: that of the first site that it opens.
cache = None


def setup_redis_cache_connection():
    global cache
    if not cache:
        from frappe.utils import redis_wrapper

        cache = redis_wrapper.setup_cache()


class SiteNotSpecified(Exception):
    """The command works on a site, and none was given."""

    def __init__(self):
        super().__init__("Please specify --site sitename")


class IncorrectSitePath(Exception):
    """The site has no site_config.json."""


class LockTimeoutError(Exception):
    """Somebody else holds the lock of a site or of the bench."""


class CommandFailed(Exception):
    """A program that was started failed."""


class InvalidDatabaseFile(Exception):
    """What is to be restored is no dump of a site."""


class DuplicateEntryError(Exception):
    """There is one of that name."""


class InvalidEmailAddressError(Exception):
    """An address that no mail can be sent to."""


class ValidationError(Exception):
    """The request contradicts what is there."""


class AuthenticationError(Exception):
    """There is no such password."""
