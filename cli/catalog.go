package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
)

// Catalog returns what the provider sells, as the API knows it.
func (c *Client) Catalog(ctx context.Context) (out api.Catalog, err error) {
	return out, c.Do(ctx, http.MethodGet, "/v1/catalog", nil, nil, &out)
}

func catalogCommand(c *CLI) *cobra.Command {
	location := ""
	cmd, _ := c.own("getCatalog")
	cmd.Flags().StringVar(&location, "location", "", "only offers of this location")
	return c.run(cmd, "", func(in *call) (func() error, error) {
		var out api.Catalog
		if err := in.client.Do(in.Context(), http.MethodGet, "/v1/catalog", nil, nil, &in.answer); err != nil {
			return nil, err
		}
		in.keep(in.answer)
		if err := json.Unmarshal(in.answer, &out); err != nil || !in.forPeople() {
			return nil, err
		}
		return nil, in.catalog(out, location)
	})
}

// offer is a machine type at a location.
type offer struct {
	Type  api.CatalogServerType `json:"type"`
	At    api.CatalogOffer      `json:"at"`
	State string                `json:"state"`
}

func (in *call) catalog(c api.Catalog, location string) error {
	failure := ""
	if c.Failure != nil {
		failure = " (" + *c.Failure + ")"
	}
	if !c.Known {
		fmt.Fprintf(in.w, "%s's catalog was never read%s; requests are checked against the configured locations only\n", c.Provider, failure)
	} else {
		fmt.Fprintf(in.w, "%sread %s ago%s\n", map[bool]string{true: "STALE: "}[c.Stale], age(in.Now().Sub(*c.RefreshedAt)), failure)
	}
	for _, p := range c.Problems {
		fmt.Fprintf(in.w, "WARNING: configured %s %s %s\n", strings.ReplaceAll(string(p.Kind), "_", " "), p.Name, p.Message)
	}
	var offers []offer
	for _, s := range c.ServerTypes {
		for _, at := range s.Locations {
			if location == "" || at.Location == location {
				offers = append(offers, offer{s, at, offerState(at, in.Now())})
			}
		}
	}
	currency := strings.ToLower(deref(c.Currency))
	if err := partsIn(in.printer, &api.Table{
		List: api.Columns("type.name: type, type.cores, type.memory_gb|gb, type.disk_gb|gb, type.cpu, type.architecture: arch, at.location, at.price.monthly.net: " + currency + "/month, at.price.monthly.gross: gross, " +
			"at.price.hourly.net: " + currency + "/hour, state"),
		Spare: []string{"gross", "disk", "arch", "cpu", currency + "/hour"},
	}, offers); err != nil {
		return err
	}
	fmt.Fprintln(in.w)
	if err := parts(in.printer, "CatalogImage", c.Images); err != nil {
		return err
	}
	var lines [][2]string
	if c.VolumeGbMonth != nil && c.ImageGbMonth != nil {
		lines = [][2]string{{"volume, per GB and month", c.VolumeGbMonth.Net}, {"snapshot, per GB and month", c.ImageGbMonth.Net}}
	}
	for _, l := range c.Locations {
		if l.Ipv4 != nil && (location == "" || l.Name == location) {
			lines = append(lines, [2]string{"IPv4 address in " + l.Name + ", per month", l.Ipv4.Monthly.Net})
		}
	}
	fmt.Fprintln(in.w)
	in.pairs(in.w, lines...)
	return nil
}

func offerState(at api.CatalogOffer, now time.Time) string {
	switch {
	case at.UnavailableAfter != nil && !now.Before(*at.UnavailableAfter):
		return "retired"
	case at.UnavailableAfter != nil:
		return "deprecated until " + at.UnavailableAfter.Format(time.DateOnly)
	case !at.Available:
		return "out of stock"
	}
	return "available"
}
