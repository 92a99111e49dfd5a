package console

import (
	"encoding/json"
	"fmt"
	"testing"
)

// TestAFleetHasAsManyTilesAsAPageHolds and counts the servers without one.
func TestAFleetHasAsManyTilesAsAPageHolds(t *testing.T) {
	t.Parallel()
	for n, more := range map[int]int{0: 0, mapTiles - 1: 0, mapTiles: 0, mapTiles + 1: 1, 10000: 10000 - mapTiles} {
		var servers []any
		for i := range n {
			servers = append(servers, map[string]any{"server_id": fmt.Sprintf("app-%d", i), "status": "active", "memory_mb": json.Number("16384")})
		}
		m := tiles(object{"fleet_id": "web", "role": "app", "servers": servers}, "eu")
		assertTrue(t, len(m.Tiles) == n-more && m.More == more, "%d servers: %d tiles and %d more", n, len(m.Tiles), m.More)
		assertTrue(t, m.All == "/console/servers?fleet_id=web&region=eu&role=app", "the others are at %s", m.All)
		for i, a := range m.Tiles {
			assertTrue(t, a.X >= 0 && a.X+a.Side <= mapWidth && a.Y+a.Side <= float64(m.Height), "tile %d is outside: %+v", i, a)
			if i > 0 {
				b := m.Tiles[i-1]
				assertTrue(t, a.X >= b.X+b.Side || a.Y >= b.Y+b.Side, "tiles %d and %d overlap", i-1, i)
			}
		}
	}
}
