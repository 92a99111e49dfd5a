package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/draw"
	"image/png"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prego/prego/api"
	"github.com/prego/prego/cli"
	"github.com/prego/prego/lab/browser"
	"github.com/prego/prego/tenant"
)

const (
	filmWidth = 820     // in pixels, as wide as a README
	filmLimit = 1 << 20 // of the file, in bytes
)

// onlyTheMove hides all of a tenant's page but its place, whether it answers, its newest move and its newest events, and
// returns where these end.
const onlyTheMove = `(() => {
	const hide = e => { e.style.display = 'none' };
	const all = (selector, f) => document.querySelectorAll(selector).forEach(f);
	all('nav.side, header form, header .who, .crumbs, .do, main .commands, #live > .facts, .all', hide);
	all('.frame', e => { e.style.display = 'block' });
	let end = 0;
	all('#live section', s => {
		if (!/^(Where it is|Whether it answers|Moves|History)/.test(s.querySelector('h2').textContent)) return hide(s);
		s.querySelectorAll('.facts > div').forEach(f => {
			if (!/^(app server|db shard|site name|up|since)$/.test(f.querySelector('dt').textContent)) hide(f);
		});
		s.querySelectorAll('tbody tr:nth-child(n+2), li:nth-child(n+4)').forEach(hide);
		s.querySelectorAll(':is(th, td):is(:nth-child(3), :nth-child(n+8))').forEach(hide);
		end = s.getBoundingClientRect().bottom;
	});
	return Math.round(end) + 16;
})()`

// film moves the demo's tenant once more, and makes an animated picture of its page meanwhile. Each state is shown for
// a second, so that it can be read, although a move is faster.
func film(ctx context.Context, tab *browser.Tab, base, token, out string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	c := cli.NewClient(base, token)
	var all api.TenantPage
	if err := c.Do(ctx, http.MethodGet, "/v1/tenants", url.Values{"state": {"active"}}, nil, &all); err != nil {
		return err
	}
	var id string
	for _, t := range all.Tenants {
		if strings.HasPrefix(t.Slug, "mover-") {
			id = t.TenantId
		}
	}
	if id == "" {
		return errors.New("the demo left no tenant that can move")
	}
	var (
		f     browser.Film
		m     api.Move
		shot  tenant.MoveState
		moves = "/v1/tenants/" + id + "/moves"
	)
	shoot := func(shown time.Duration) error {
		p, err := picture(tab, "/console/tenants/"+id)
		if err == nil {
			f.Add(p, shown)
		}
		return err
	}
	if err := errors.Join(tab.Look(filmWidth, false), shoot(2*time.Second)); err != nil {
		return err
	}
	if err := c.Do(ctx, http.MethodPost, moves, nil, struct{}{}, &m); err != nil {
		return err
	}
	for m.State != tenant.MoveDone {
		switch {
		case m.State == tenant.MoveFailed || m.State == tenant.MoveCancelled:
			return fmt.Errorf("move %s is %s", m.MoveId, m.State)
		case m.State != shot:
			shot = m.State
			if err := shoot(time.Second); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond): // the API limits a caller's requests
		}
		if err := c.Do(ctx, http.MethodGet, moves+"/"+m.MoveId, nil, nil, &m); err != nil {
			return err
		}
	}
	if err := shoot(3 * time.Second); err != nil {
		return err
	}
	b, err := f.GIF()
	if err == nil && len(b) > filmLimit {
		err = fmt.Errorf("the film has %d bytes, and %d are allowed", len(b), filmLimit)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "move.gif"), b, 0o600)
}

// picture is what a tenant's page shows of its move.
func picture(tab *browser.Tab, path string) (image.Image, error) {
	if status, err := tab.Open(path); err != nil || status != http.StatusOK {
		return nil, fmt.Errorf("%s: status %d, %w", path, status, err)
	}
	end, err := browser.Ask[int](tab, onlyTheMove)
	if err != nil {
		return nil, err
	}
	b, err := tab.Picture()
	if err != nil {
		return nil, err
	}
	page, err := png.Decode(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	p := image.NewRGBA(image.Rect(0, 0, filmWidth, end))
	draw.Draw(p, p.Bounds(), page, image.Point{}, draw.Src)
	return p, nil
}
