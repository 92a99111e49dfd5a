#!/bin/sh
# Stands in for bench on a simulated host. It keeps just enough state for the
# control plane to be tested against: sites/SITE/{apps.txt,config,db-name,maintenance},
# where config holds KEY=VALUE lines. The database is apps.txt and, when there is one,
# data; the files are public/files and private/files. Every command may be repeated.
set -eu

root=${0%/usr/local/bin/bench}
cd "$root/home/frappe/frappe-bench"

die() {
	printf '%s\n' "$1" >&2
	exit 1
}

# delay VERB takes the time that .sim/delays gives to it, in seconds.
delay() {
	while read -r name seconds; do
		if [ "$name" = "$1" ]; then
			sleep "$seconds"
		fi
	done <.sim/delays
}

# fault VERB sets action and message to those of the first fault that happens
# now. bench.go describes the files.
action=
message=
fault() {
	for dir in .sim/faults/[0-9]*; do
		[ -d "$dir" ] || continue
		pattern= verbs= kind= text= pause=0
		while IFS= read -r line; do
			case $line in
			server=*) pattern=${line#*=} ;;
			verb=*) verbs=${line#*=} ;;
			action=*) kind=${line#*=} ;;
			message=*) text=${line#*=} ;;
			delay=*) pause=${line#*=} ;;
			esac
		done <"$dir/fault" || continue # it was withdrawn meanwhile
		[ -z "$verbs" ] || [ "$verbs" = "$1" ] || continue
		read -r host <.sim/host
		# shellcheck disable=SC2254 # it is a pattern
		case $host in
		$pattern) ;;
		*) continue ;;
		esac
		printf x 2>/dev/null >>"$dir/matched" || continue
		! claim "$dir/skip" || continue
		if [ -e "$dir/forever" ]; then
			printf x >>"$dir/hits"
		else
			claim "$dir/times" || continue
		fi
		action=$kind message=$text
		if [ "$action" = hang ]; then
			sleep "$pause"
		fi
		return 0
	done
}

# claim takes one token of a directory, if there is any left: of two that remove
# the same file only one succeeds.
claim() {
	for token in "$1"/*; do
		if rm "$token" 2>/dev/null; then
			return 0
		fi
	done
	return 1
}

exists() {
	[ -d "sites/$1" ] || die "Site $1 does not exist!"
}

# put FILE replaces a file with standard input at once.
put() {
	cat >"$1.$$"
	mv "$1.$$" "$1"
}

new_site() { # SITE DB
	if [ ! -d "sites/$1" ]; then
		# One that was killed may have left it.
		rm -rf "sites/.new-$1"
		mkdir "sites/.new-$1"
		echo frappe >"sites/.new-$1/apps.txt"
		: >"sites/.new-$1/config"
		echo "$2" >"sites/.new-$1/db-name"
		echo off >"sites/.new-$1/maintenance"
		delay new-site
		if mv -T "sites/.new-$1" "sites/$1" 2>/dev/null; then
			echo "*** Site $1 has been created ***"
			return
		fi
	fi
	# Nothing here but another that was faster leaves no site behind.
	read -r db 2>/dev/null <"sites/$1/db-name" || die "Site $1 could not be created"
	[ "$db" = "$2" ] || die "Site $1 already exists with another database"
	echo "Site $1 already exists"
}

rename_site() { # OLD NEW
	delay rename-site
	if [ -d "sites/$1" ] && [ -d "sites/$2" ] && [ "$1" != "$2" ]; then
		die "Site $2 already exists"
	fi
	if [ ! -d "sites/$2" ]; then
		mv -T "sites/$1" "sites/$2" 2>/dev/null || [ -d "sites/$2" ] || die "Site $1 does not exist!"
	fi
	echo "Site $1 is now $2"
}

set_config() { # SITE KEY VALUE
	exists "$1"
	{
		while IFS= read -r line; do
			case $line in
			"$2="*) ;;
			*) printf '%s\n' "$line" ;;
			esac
		done <"sites/$1/config"
		printf '%s=%s\n' "$2" "$3"
	} | put "sites/$1/config"
}

install_app() { # SITE APP
	exists "$1"
	while read -r app; do
		if [ "$app" = "$2" ]; then
			echo "App $2 already installed"
			return
		fi
	done <"sites/$1/apps.txt"
	delay install-app
	{
		cat "sites/$1/apps.txt"
		echo "$2"
	} | put "sites/$1/apps.txt"
	echo "Installed $2"
}

backup() { # SITE FILES
	exists "$1"
	dir=$1/private/backups
	mkdir -p "sites/$dir" "sites/$1/public/files" "sites/$1/private/files"
	label=$(printf '%s' "$1" | tr .- __)
	# Backups are named after the second. Of two in one second the later one waits.
	while stamp=$(date -u +%Y%m%d_%H%M%S) && ! mkdir "sites/$dir/.$stamp" 2>/dev/null; do
		sleep 0.2
	done
	name=$dir/$stamp-$label
	data=
	if [ -f "sites/$1/data" ]; then
		data=data
	fi
	tar -C "sites/$1" -cf - apps.txt ${data:+"$data"} | gzip -n >"sites/$name-database.sql.gz"
	size=$(wc -c <"sites/$name-database.sql.gz")
	echo "Backup Summary for $1"
	echo "Database: ./$name-database.sql.gz"
	if [ -n "$2" ]; then
		tar -C "sites/$1/public" -cf "sites/$name-files.tar" files
		tar -C "sites/$1/private" -cf "sites/$name-private-files.tar" files
		echo "Public:   ./$name-files.tar"
		echo "Private:  ./$name-private-files.tar"
	fi
	echo "Backup for site $1 has been successfully completed, bytes $size"
}

restore() { # SITE DATABASE [PUBLIC PRIVATE]
	exists "$1"
	for part in "$2" ${3+"$3" "$4"}; do
		[ -f "sites/$part" ] || die "Invalid path $part"
	done
	new=sites/.restore-$1-$$
	rm -rf "$new"
	mkdir -p "$new/database" "$new/public" "$new/private"
	gzip -dc "sites/$2" 2>/dev/null | tar -C "$new/database" -xf - 2>/dev/null || true
	if [ ! -f "$new/database/apps.txt" ]; then
		rm -rf "$new"
		die "Database $2 could not be read"
	fi
	if [ $# -gt 2 ]; then
		if ! tar -C "$new/public" -xf "sites/$3" || ! tar -C "$new/private" -xf "sites/$4"; then
			rm -rf "$new"
			die "Files could not be read"
		fi
	fi
	put "sites/$1/apps.txt" <"$new/database/apps.txt"
	if [ -f "$new/database/data" ]; then
		put "sites/$1/data" <"$new/database/data"
	else
		rm -f "sites/$1/data"
	fi
	if [ $# -gt 2 ]; then
		for kind in public private; do
			rm -rf "sites/$1/$kind/files"
			mkdir -p "sites/$1/$kind"
			mv -T "$new/$kind/files" "sites/$1/$kind/files"
		done
	fi
	rm -rf "$new"
	echo "Site $1 has been restored"
}

drop_site() { # SITE
	if [ -d "sites/$1" ]; then
		# First out of sight, at once; what is killed then is removed by the next.
		mv -T "sites/$1" "sites/.drop-$1-$$" 2>/dev/null || [ ! -d "sites/$1" ] || die "Site $1 could not be dropped"
	fi
	rm -rf "sites/.new-$1" "sites/.drop-$1-"* "sites/.restore-$1-"*
	echo "Site $1 is gone"
}

list_sites() {
	for dir in sites/*/; do
		if [ -d "$dir" ]; then
			dir=${dir%/}
			echo "${dir#sites/}"
		fi
	done
}

site=
if [ "${1-}" = --site ]; then
	[ $# -ge 3 ] || die "Usage: bench --site SITE COMMAND"
	site=$2
	shift 2
fi
verb=${1-}
fault "$verb"
if [ "$action" = fail ]; then
	die "$message"
fi
case $verb/$# in
new-site/4) new_site "$2" "$4" ;;
rename-site/2) rename_site "$site" "$2" ;;
set-config/3) set_config "$site" "$2" "$3" ;;
install-app/2) install_app "$site" "$2" ;;
list-apps/1) exists "$site" && cat "sites/$site/apps.txt" ;;
set-maintenance-mode/2) exists "$site" && echo "$2" | put "sites/$site/maintenance" ;;
backup/1) backup "$site" "" ;;
backup/2) backup "$site" files ;;
restore/2) restore "$site" "$2" ;;
restore/6) restore "$site" "$2" "$4" "$6" ;;
drop-site/4) drop_site "$2" ;;
list-sites/1) list_sites ;;
*) die "Error: No such command '$verb'." ;;
esac
if [ "$action" = fail_after ]; then
	die "$message"
fi
