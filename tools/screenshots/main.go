// Command screenshots makes pictures of the console's pages: each at three widths, light and dark, and a film of a move.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/prego/prego/lab/browser"
)

func main() {
	base, tokenFile, out := flag.String("api-url", "http://127.0.0.1:8080", "URL of the API"),
		flag.String("token-file", ".prego/operator.token", "file with a token"),
		flag.String("out", "docs/console", "directory")
	only := flag.String("only", "", "names of pages, separated by commas")
	flag.Parse()
	if err := run(*base, *tokenFile, *out, *only); err != nil {
		fmt.Fprintln(os.Stderr, "screenshots:", err)
		os.Exit(1)
	}
}

// widths are a telephone's, a laptop's and a large screen's, in pixels.
var widths = []int64{360, 1280, 2560}

func run(base, tokenFile, out, only string) error {
	raw, err := os.ReadFile(tokenFile)
	if err != nil {
		return err
	}
	token := strings.TrimSpace(string(raw))
	program := browser.Program()
	if program == "" {
		return errors.New("there is no Chromium here")
	}
	dir, err := os.MkdirTemp("", "screenshots")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	b, end, err := browser.Start(context.Background(), program, dir)
	if err != nil {
		return err
	}
	defer end()
	tab, _, err := b.NewTab(base)
	if err != nil {
		return err
	}
	if err := tab.Login(token); err != nil {
		return err
	}
	pages, err := pagesOf(base, token)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for _, p := range pages {
		if only != "" && !strings.Contains(","+only+",", ","+p.name+",") {
			continue
		}
		for _, width := range widths {
			for _, dark := range []bool{false, true} {
				if err := tab.Look(width, dark); err != nil {
					return err
				}
				if status, err := tab.Open(p.path); err != nil || status != http.StatusOK {
					return fmt.Errorf("%s: status %d, %w", p.path, status, err)
				}
				png, err := tab.Picture()
				if err != nil {
					return err
				}
				name := fmt.Sprintf("%s-%d-%s.png", p.name, width, map[bool]string{false: "light", true: "dark"}[dark])
				if err := os.WriteFile(filepath.Join(out, name), png, 0o600); err != nil {
					return err
				}
			}
		}
		fmt.Println(p.name, p.path)
	}
	if only == "" || strings.Contains(","+only+",", ",move,") {
		if err := film(context.Background(), tab, base, token, out); err != nil {
			return err
		}
		fmt.Println("move")
	}
	for _, problem := range tab.Problems() {
		fmt.Println("problem:", problem)
	}
	return nil
}

// shot is a page to make a picture of.
type shot struct{ name, path string }

// pagesOf are the pages of an installation; of each kind, the first existing object.
func pagesOf(base, token string) ([]shot, error) {
	out := []shot{
		{"now", "/console"},
		{"map", "/console/map"},
		{"packing", "/console/map/packing"},
		{"servers", "/console/servers"},
		{"tenants", "/console/tenants"},
		{"what-if", "/console/what-if?f.request.region=eu&f.request.plan=starter"},
		{"decisions", "/console/decisions"},
		{"queue", "/console/queue"},
		{"fleets", "/console/fleets"},
		{"policies", "/console/policies"},
		{"warm-pools", "/console/warm-pools"},
		{"orgs", "/console/orgs"},
		{"groups", "/console/groups"},
		{"routes", "/console/routes"},
		{"volumes", "/console/volumes"},
		{"ledger", "/console/ledger"},
		{"costs", "/console/costs?by=tenant"},
		{"audit", "/console/audit"},
		{"search", "/console/search?q=demo"},
		{"new-server", "/console/do/createServer"},
	}
	for _, one := range []struct{ name, list, items, id, page, query string }{
		{"server", "/v1/servers", "servers", "server_id", "/console/servers/", "&role=app&status=active"},
		{"tenant", "/v1/tenants", "tenants", "tenant_id", "/console/tenants/", "&state=active"},
		{"decision", "/v1/decisions", "decisions", "id", "/console/decisions/", "&outcome=placed"},
		{"fleet", "/v1/fleets", "fleets", "fleet_id", "/console/fleets/", ""},
		{"org", "/v1/orgs", "orgs", "org_id", "/console/orgs/", ""},
		{"group", "/v1/groups", "groups", "group_id", "/console/groups/", ""},
		{"audit-entry", "/v1/audit", "entries", "entry_id", "/console/audit/", "&verb=update"},
	} {
		id, err := first(base+one.list+"?limit=1"+one.query, token, one.items, one.id)
		if err != nil {
			return nil, err
		}
		if id != "" {
			out = append(out, shot{one.name, one.page + id})
		}
		if one.name == "decision" && id != "" {
			out = append(out, shot{"replay", one.page + id + "/replay"})
		}
		if one.name == "server" && id != "" {
			out = append(out, shot{"drain-server", "/console/do/drainServer?server_id=" + id})
		}
	}
	return out, nil
}

// first is the id of the first thing of a list, "" if there is none.
func first(url, token, items, id string) (string, error) {
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	var page map[string]json.RawMessage
	if err := json.NewDecoder(resp.Body).Decode(&page); err != nil {
		return "", err
	}
	var list []map[string]any
	if err := json.Unmarshal(page[items], &list); err != nil || len(list) == 0 {
		return "", err
	}
	return fmt.Sprint(list[0][id]), nil
}
