"""Backups of a site, and what they are restored from."""

import datetime
import gzip
import os
import shutil
import subprocess
import sys

import click

from frappe import InvalidDatabaseFile, database, installer, simulated

PARTS = {
    "conf": "site_config_backup.json",
    "db": "database.sql.gz",
    "files": "files.tar",
    "private_files": "private-files.tar",
}


class Backup:
    """Where the parts of a backup are."""

    def __init__(self, site, directory=None, paths=None, compress=False, verbose=False):
        self.site, self.verbose = site, verbose
        folder = directory or site.file(site.conf.get("backup_path") or "private/backups")
        stamp = local_now().strftime("%Y%m%d_%H%M%S") + "-" + site.name.replace(".", "_")
        self.paths = {}
        for part, name in PARTS.items():
            if compress:
                name = name.replace(".tar", ".tgz")
            self.paths[part] = (paths or {}).get(part) or os.path.join(folder, f"{stamp}-{name}")
        self.compress = compress
        chosen = [p for p in (paths or {}).values() if p]
        if directory or not chosen:
            os.makedirs(folder, exist_ok=True)
        for path in chosen:
            os.makedirs(os.path.dirname(path), exist_ok=True)

    def write(self, files):
        """Writes the parts. One that fails takes its own file, and those before it, with it."""
        written = []
        try:
            for part, step in (("db", self.write_database), ("conf", self.write_config)):
                written.append(self.paths[part])
                step(self.paths[part])
            if files:
                for part, folder in (("files", "public"), ("private_files", "private")):
                    written.append(self.paths[part])
                    self.write_files(self.paths[part], folder)
        except BaseException:
            for path in written:
                if os.path.exists(path):
                    os.remove(path)
            raise

    def write_database(self, path):
        lines = ["begin frappe metadata", "[frappe]", f"version = {simulated.version()}", "branch = N/A", "end frappe metadata", ""]
        database.dump(self.site.conf, "".join(f"-- {line}\n" for line in lines), path, self.verbose)

    def write_config(self, path):
        with open(self.site.config_file, encoding="utf-8") as old, open(path, "w", encoding="utf-8") as new:
            new.write(old.read())

    def write_files(self, path, folder):
        source = self.site.file(folder, "files")
        run = subprocess.run(["tar", "-czf" if self.compress else "-cf", path, source], stderr=subprocess.PIPE, check=False)
        if run.returncode and b"file changed as we read it" in run.stderr:
            click.secho("Ignoring `tar: file changed as we read it` to prevent backup failure", fg="red")
        elif run.returncode:
            print(run.stderr)
            raise database.CommandFailed("Command failed")

    def print_summary(self):
        print(f"Backup Summary for {self.site.name} at {local_now()}")
        parts = {"Config": self.paths["conf"], "Database": self.paths["db"]}
        if os.path.exists(self.paths["files"]) and os.path.exists(self.paths["private_files"]):
            parts |= {"Public": self.paths["files"], "Private": self.paths["private_files"]}
        width = max(len(path) for path in parts.values())
        for title, path in parts.items():
            print(f"{title:{max(len(t) for t in parts)}}: {path:{width}} {size(path)}")


def take(site, files=False, directory=None, paths=None, compress=False, verbose=False):
    remove_old(site)
    backup = Backup(site, directory, paths, compress, verbose)
    backup.write(files)
    return backup


def local_now():
    """The time in the zone of a new site: Frappe's default is India's."""
    return datetime.datetime.now(datetime.timezone(datetime.timedelta(hours=5, minutes=30))).replace(tzinfo=None)


def remove_old(site):
    """Removes what has been in the site's backup directory for more than a day."""
    hours = int(site.conf.get("keep_backups_for_hours") or 24)
    folder = site.file(site.conf.get("backup_path") or "private/backups")
    if not os.path.isdir(folder):
        return
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        age = datetime.datetime.now() - datetime.datetime.fromtimestamp(os.stat(path).st_ctime)
        if not os.path.isfile(path) or age >= datetime.timedelta(hours=hours):
            os.remove(path)  # which fails for a directory


def size(path):
    number = float(os.path.getsize(path))
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:.1f}{unit}"
        number /= 1024
    return ""


def restore(site, path, *, root_user=None, root_password=None, admin_password=None, install=(), force=False, public=None, private=None):
    """Replaces the site's database, and adds files of tars to those that are there."""
    path = find(site, path)
    header = head(path)
    if "Partial Backup" in header:
        click.secho("Partial Backup file detected. You cannot use a partial file to restore a Frappe site.", fg="red")
        click.secho("Use `bench partial-restore` to restore a partial backup to an existing site.", fg="yellow")
        sys.exit(1)
    version = version_of(header)
    if version and version > tuple(int(n) for n in simulated.version().split(".")) and not force:
        print(f"Your site is currently on Frappe {simulated.version()} and your backup is {'.'.join(map(str, version))}.")
        click.confirm("This is not recommended and may lead to unexpected behaviour. Do you want to continue anyway?", abort=True)
    validate(path, force)
    try:
        installer.new_site(site, db_name=site.conf.get("db_name"), root_user=root_user, root_password=root_password, admin_password=admin_password,
                           install=install, source=path, force=True, db_type=site.conf["db_type"])
    except Exception as err:
        print(err)
        sys.exit(1)
    for tar in (public, private):
        if tar:
            extract(site, tar)
    print(f"Site {site.name} has been restored{' with files' if public or private else ''}")


def find(site, path):
    if os.path.exists(path):
        return path
    click.secho(f"File {path} not found. Trying to check in alternative directories.", fg="yellow")
    for folder in (os.path.join(site.name, "private", "backups"), ".."):
        other = os.path.join(folder, path)
        if os.path.exists(other):
            other = os.path.realpath(other)
            click.secho(f"File {other} found.", fg="green")
            return other
    click.secho(f"File {path} not found.", fg="red")
    sys.exit(1)


def head(path):
    opened = gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb")
    with opened as f:
        return f.read(256).decode()


def version_of(header):
    for line in header.splitlines():
        if line.startswith("-- version = "):
            return tuple(int(n) for n in line.removeprefix("-- version = ").split("."))
    return None


def validate(path, force):
    """A dump of a site holds the table of passwords."""
    if os.path.getsize(path):
        search = "zgrep" if path.endswith(".gz") else "grep"
        if subprocess.run([shutil.which(search) or search, "-m1", "__Auth", path], capture_output=True, check=False).returncode == 0:
            return
        click.secho("Table `__Auth` not found in file.", fg="red")
    else:
        click.secho(f"{path} is an empty file!", fg="red")
    if not force:
        raise InvalidDatabaseFile


def extract(site, path):
    """Unpacks a tar of files over those that are there: what the tar lacks stays."""
    if not os.path.exists(path) and not os.path.exists(os.path.join("..", path)):
        print(f"Invalid path {path}")
        sys.exit(1)
    path = path if os.path.exists(path) else os.path.join("..", path)
    copied = shutil.copy2(os.path.abspath(path), os.path.abspath(site.path))
    flags = "xf" if path.endswith(".tar") else "zxf"
    subprocess.run(["tar", flags, copied, "--strip", "2"], cwd=site.path, check=True, stdout=subprocess.DEVNULL)
    os.remove(copied)
