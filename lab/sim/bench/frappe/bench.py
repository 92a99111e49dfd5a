"""The program `bench`: finds the bench, and runs Frappe's command line in its sites/."""

import datetime
import os
import sys

from frappe import simulated

PARTS = ("apps", "sites", "config", "logs", "config/pids")
VERSION = "5.31.1"


def find(directory):
    """The nearest bench that holds a directory, as far up as the home directory."""
    home = os.path.expanduser("~")
    while not all(os.path.exists(os.path.join(directory, part)) for part in PARTS):
        if directory in (home, "/"):
            return None
        directory = os.path.dirname(directory)
    return directory


def verb_of(args):
    """The command of a command line: the first word that is no option, nor the value of one."""
    words = iter(args)
    for word in words:
        if word == "--site":
            next(words, None)
        elif not word.startswith("-"):
            return word
    return ""


def log(bench, argv):
    """Keeps every command line in logs/bench.log, secrets and all, as bench does."""
    now = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
    with open(os.path.join(bench, "logs", "bench.log"), "a", encoding="utf-8") as f:
        f.write(f"{now} INFO {' '.join(argv)}\n")


def main(argv):
    import warnings

    warnings.simplefilter("ignore")
    args = argv[1:]
    if args == ["--version"]:
        print(VERSION)
        return
    bench = find(os.getcwd())
    if bench:
        log(bench, argv)
        os.chdir(os.path.join(bench, "sites"))
        sys.path.insert(0, os.getcwd())  # as of "python -m", which bench starts
    if os.geteuid() == 0 and not (bench and simulated.there()):
        print("WARN: You should not run this command as root")
        sys.exit(1)
    if not bench:
        print("WARN: Command not being executed in bench directory")
        from frappe import cli

        cli.no_bench(args)
    run(args)


def run(args):
    hit = simulated.fault(verb_of(args))
    if hit.get("action") == "fail":
        fail(hit["message"])
    try:
        from frappe import cli

        cli.main(args)
    except SystemExit as end:
        if hit.get("action") == "fail_after" and not end.code:
            fail(hit["message"])
        raise


def fail(message):
    sys.stdout.flush()
    print(message, file=sys.stderr)
    sys.exit(1)
