package site

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"
)

// apps are the apps of a site, as Frappe stores them (frappe/__init__.py, get_installed_apps). "bench list-apps
// --format json" reads them from the last migration only, so it lists none on a new site.
func (b *bench) apps(site string) ([]string, error) {
	db, _, err := b.asSite(site)
	if err != nil {
		return nil, err
	}
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
	apps, err := b.apps(site)
	if err != nil {
		return err
	}
	return b.printResult(apps)
}

// versions are the versions of a site's apps at its last migration; there are none before the first
// (frappe/core/doctype/installed_applications, update_versions).
func (b *bench) versions(site string) error {
	db, _, err := b.asSite(site)
	if err != nil {
		return err
	}
	rows, err := rowsOf(db, "SELECT app_name, app_version FROM `tabInstalled Application` WHERE parent = 'Installed Applications'")
	if err != nil {
		return err
	}
	found := map[string]string{}
	for _, r := range rows {
		found[r[0].String] = r[1].String
	}
	return b.printResult(found)
}

// answerWithin is how long a site may take to answer: a web process that has just started imports the apps first.
const answerWithin = 30 * time.Second

// answers asks the bench's web server for a site, as its frontend does.
func (b *bench) answers(site string) error {
	common, err := b.readConfig(commonConfig)
	if err != nil {
		return err
	}
	port := 8000 // as gunicorn's in the image
	if text, ok := common["webserver_port"]; ok && json.Unmarshal(text, &port) != nil {
		return fmt.Errorf("webserver_port of %s is no port", commonConfig)
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerWithin)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/api/method/ping", port), nil)
	if err != nil {
		return err
	}
	r.Host = site
	r.Header.Set("X-Frappe-Site-Name", site)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if err != nil {
		return err
	}
	var pong struct{ Message string }
	if resp.StatusCode != http.StatusOK || json.Unmarshal(text, &pong) != nil || pong.Message != "pong" {
		return fmt.Errorf("site %s answers with %s: %.200q", site, resp.Status, text)
	}
	return b.printResult(map[string]int{"status": resp.StatusCode})
}

// installApp installs an app; one already installed is success. An interrupted installation leaves modules that make
// the next one fail unless it is forced.
func (b *bench) installApp(site, app string) error {
	s := b.state
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
