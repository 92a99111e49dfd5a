package site

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// apps are the apps of a site, as Frappe stores them (frappe/__init__.py,
// get_installed_apps). "bench list-apps --format json" reads them from the last
// migration only, so it lists none on a new site.
func (b *bench) apps(site string) ([]string, error) {
	db, _, err := b.asSite(site)
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close() }()
	text, err := queryValue[sql.NullString](db, "SELECT defvalue FROM tabDefaultValue WHERE parent = '__global' AND defkey = 'installed_apps'")
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, err
	}
	apps := []string{}
	if text.Valid && json.Unmarshal([]byte(text.String), &apps) != nil {
		return nil, fmt.Errorf("the apps of site %s can't be read", site)
	}
	return apps, nil
}

func (b *bench) listApps(site string) error {
	if err := b.using(site); err != nil {
		return err
	}
	apps, err := b.apps(site)
	if err != nil {
		return err
	}
	return b.printResult(apps)
}

// installApp installs an app; one already installed is success. An interrupted
// installation leaves modules, on which another one fails unless it is forced.
func (b *bench) installApp(site, app string) error {
	if err := b.lock(alone, site); err != nil {
		return err
	}
	s, err := b.finishedSite(site)
	if err != nil {
		return err
	}
	apps, err := b.apps(site)
	if err != nil {
		return err
	}
	again := s.Installing == app
	if !slices.Contains(apps, app) || again {
		s.Installing = app
		if err := b.writeState(site, *s); err != nil {
			return err
		}
		args := []string{"--site", site, "install-app", app}
		if again {
			args = append(args, "--force")
		}
		if err := b.command(nil, args...); err != nil {
			return err
		}
		s.Installing = ""
		if err := b.writeState(site, *s); err != nil {
			return err
		}
	}
	return b.printResult(map[string]any{"site": site, "app": app})
}

// migrate brings a site's database to the code's version. Frappe records each applied
// patch, so it continues where it was killed.
func (b *bench) migrate(site string) error {
	if err := b.lock(alone, site); err != nil {
		return err
	}
	if _, err := b.finishedSite(site); err != nil {
		return err
	}
	return b.command(nil, "--site", site, "migrate")
}

func (b *bench) enableScheduler(site string) error  { return b.simple(site, "enable-scheduler") }
func (b *bench) disableScheduler(site string) error { return b.simple(site, "disable-scheduler") }

func (b *bench) simple(site, verb string) error {
	if err := b.using(site); err != nil {
		return err
	}
	return b.command(nil, "--site", site, verb)
}
