package placer

import "github.com/prego/prego"

// Waiting counts the tenants in the line of a region.
func (p *Placer) Waiting(region prego.Region) int {
	p.lines.mu.Lock()
	defer p.lines.mu.Unlock()
	if l := p.lines.of[region]; l != nil {
		return len(l.waiting)
	}
	return 0
}
