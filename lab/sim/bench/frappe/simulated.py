"""What the simulator does to commands of its hosts: delays and faults.

They are files below .sim in the bench's directory, which lab/sim/bench.go writes
and describes. A bench without that directory has neither.
"""

import fnmatch
import os
import re
import sys
import time

import frappe


def there():
    return os.path.isdir("../.sim")


def read(name):
    try:
        with open(name, encoding="utf-8") as f:
            return f.read().splitlines()
    except OSError:
        return []


def version():
    """The version of the code: that of the image's tag, if that is one."""
    found = re.search(r":v?(\d+\.\d+\.\d+)(@|$)", "".join(read("../.sim/image")))
    return found[1] if found else frappe.__version__


def delay(verb):
    """Takes the time that a command would take on a real host."""
    for line in read("../.sim/delays"):
        name, seconds = line.split()
        if name == verb:
            sys.stdout.flush()
            time.sleep(float(seconds))


def claim(directory):
    """Takes one of the files of a directory: of two that remove the same one only one does."""
    try:
        names = os.listdir(directory)
    except OSError:
        return False
    for name in sorted(names):
        try:
            os.unlink(os.path.join(directory, name))
            return True
        except FileNotFoundError:
            continue
    return False


def append(path, create=False):
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | (os.O_CREAT if create else 0), 0o644)
    except OSError:
        return False
    with os.fdopen(fd, "wb") as f:
        f.write(b"x")
    return True


def fault(verb):
    """The first fault that happens now, as its fields, or none."""
    try:
        names = sorted(n for n in os.listdir("../.sim/faults") if n[0].isdigit())
    except OSError:
        return {}
    host = "".join(read("../.sim/host"))
    for name in names:
        directory = os.path.join("../.sim/faults", name)
        fields = dict(line.split("=", 1) for line in read(os.path.join(directory, "fault")))
        if not fields or fields["verb"] not in ("", verb) or not fnmatch.fnmatchcase(host, fields["server"]):
            continue
        if not append(os.path.join(directory, "matched")) or claim(os.path.join(directory, "skip")):
            continue
        if os.path.exists(os.path.join(directory, "forever")):
            append(os.path.join(directory, "hits"), create=True)
        elif not claim(os.path.join(directory, "times")):
            continue
        if fields["action"] == "hang":
            time.sleep(float(fields["delay"]))
        return fields
    return {}
