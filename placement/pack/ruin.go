package pack

import (
	"cmp"
	"math/rand/v2"
	"slices"
)

// packRuin looks for a packing with a given number of bins by ruin and recreate (Schrimpf et al., 2000). It keeps a
// part of the items packed and the others aside; each iteration empties a few bins, refills them from their items and
// the items aside, and keeps the outcome if less is aside, or little more.
type packRuin struct {
	in    *packInstance
	r     *rand.Rand
	bins  packBins
	free  []int64
	aside []int32
	heat  float64 // how much more may be aside and the outcome still be kept

	size   []float64 // by item, with the iteration's weights
	w      []float64
	ruined []int
	mark   []int // by bin, the last iteration that emptied it
	now    int
	saved  packBins
	pool   []int32
	added  []int // bins that an item was added to
	fill   packFill
}

const (
	ruinBins   = 4 // most bins that an iteration empties
	fillNodes  = 300
	packOthers = 24 // bins beside the emptied ones that are tried for the remaining items
)

func newPackRuin(in *packInstance, best packBins, r *rand.Rand) *packRuin {
	s := &packRuin{
		in: in, r: r, size: make([]float64, in.n),
		w: make([]float64, in.d), mark: make([]int, len(best)), saved: make(packBins, ruinBins),
	}
	for _, b := range best {
		s.bins = append(s.bins, slices.Clone(b))
		room := make([]int64, in.d)
		for d := range room {
			room[d] = in.limit
		}
		for _, i := range b {
			take(room, in.at(i))
		}
		s.free = append(s.free, room...)
	}
	total := 0.0
	for _, w := range in.weight {
		total += w
	}
	s.heat = packHeat * total / float64(in.n)
	s.closeOne()
	return s
}

// The heat starts at packHeat, in parts of the mean item's weight, and cools to nothing in so many iterations, again
// and again.
const (
	packHeat  = 0.03
	heatCycle = 20_000
)

func (s *packRuin) room(b int) []int64 { return s.free[b*s.in.d : (b+1)*s.in.d] }

// packing is a copy of the bins.
func (s *packRuin) packing() packBins {
	out := make(packBins, 0, len(s.bins))
	for _, b := range s.bins {
		if len(b) > 0 {
			out = append(out, slices.Clone(b))
		}
	}
	return out
}

// closeOne gives up the bin with the least in it.
func (s *packRuin) closeOne() {
	least, at := 0.0, -1
	for b, items := range s.bins {
		held := 0.0
		for _, i := range items {
			held += s.in.weight[i]
		}
		if at < 0 || held < least {
			least, at = held, b
		}
	}
	s.aside = append(s.aside, s.bins[at]...)
	last := len(s.bins) - 1
	s.bins[at] = s.bins[last]
	copy(s.room(at), s.room(last))
	s.bins, s.free = s.bins[:last], s.free[:last*s.in.d]
}

// iterate is one ruin and recreate. It returns true when nothing is aside.
func (s *packRuin) iterate() bool {
	s.empty()
	s.reweigh()
	slices.SortFunc(s.pool, func(a, b int32) int {
		return cmp.Or(cmp.Compare(s.size[b], s.size[a]), cmp.Compare(a, b))
	})
	left := s.pool
	if s.r.IntN(2) == 0 {
		for _, b := range s.ruined {
			left = s.fill.best(s, b, left)
		}
	} else {
		left = s.greedy(left)
	}
	left = s.others(left)
	if s.keep(left) {
		s.aside = append(s.aside[:0], left...)
	} else {
		s.restore()
	}
	return len(s.aside) == 0
}

// empty moves the items of a few bins into the pool, beside the items aside.
func (s *packRuin) empty() {
	s.now++
	s.ruined = s.ruined[:0]
	s.pool = append(s.pool[:0], s.aside...)
	for range 1 + s.r.IntN(min(ruinBins, len(s.bins))) {
		b := s.r.IntN(len(s.bins))
		if s.mark[b] == s.now {
			continue
		}
		s.mark[b] = s.now
		k := len(s.ruined)
		s.ruined = append(s.ruined, b)
		s.saved[k] = append(s.saved[k][:0], s.bins[b]...)
		s.pool = append(s.pool, s.bins[b]...)
		s.bins[b] = s.bins[b][:0]
		room := s.room(b)
		for d := range room {
			room[d] = s.in.limit
		}
	}
}

// reweigh varies the weights of the dimensions, and with them which fillings look full.
func (s *packRuin) reweigh() {
	total := 0.0
	for d := range s.w {
		s.w[d] = (s.in.scarce[d] + 0.02) * (0.5 + s.r.Float64())
		total += s.w[d]
	}
	for d := range s.w {
		s.w[d] /= total * float64(s.in.limit)
	}
	for _, i := range s.pool {
		s.size[i] = 0
		for d, v := range s.in.at(i) {
			s.size[i] += s.w[d] * float64(v)
		}
	}
}

// greedy puts the items, largest first except for some noise, where the least room is left among the emptied bins.
func (s *packRuin) greedy(items []int32) []int32 {
	noise := 0.5 * s.r.Float64()
	for _, i := range items {
		s.size[i] *= 1 - noise*s.r.Float64()
	}
	slices.SortFunc(items, func(a, b int32) int {
		return cmp.Or(cmp.Compare(s.size[b], s.size[a]), cmp.Compare(a, b))
	})
	left := items[:0]
	for _, i := range items {
		need, to, least := s.in.at(i), -1, 0.0
		for _, b := range s.ruined {
			room := s.room(b)
			if !packFits(need, room) {
				continue
			}
			after := 0.0
			for d, v := range room {
				after += s.w[d] * float64(v)
			}
			if to < 0 || after < least {
				to, least = b, after
			}
		}
		if to < 0 {
			left = append(left, i)
			continue
		}
		s.bins[to] = append(s.bins[to], i)
		take(s.room(to), need)
	}
	return left
}

// others tries the remaining items in some bins that were not emptied.
func (s *packRuin) others(items []int32) []int32 {
	s.added = s.added[:0]
	tries := min(packOthers, len(s.bins))
	left := items[:0]
next:
	for _, i := range items {
		b := s.r.IntN(len(s.bins))
		for range tries {
			if b++; b == len(s.bins) {
				b = 0
			}
			if s.mark[b] != s.now && packFits(s.in.at(i), s.room(b)) {
				s.bins[b] = append(s.bins[b], i)
				take(s.room(b), s.in.at(i))
				s.added = append(s.added, b)
				continue next
			}
		}
		left = append(left, i)
	}
	return left
}

// keep decides between the new and the previous items aside.
func (s *packRuin) keep(left []int32) bool {
	now, was := 0.0, 0.0
	for _, i := range left {
		now += s.in.weight[i]
	}
	for _, i := range s.aside {
		was += s.in.weight[i]
	}
	cold := 1 - float64(s.now%heatCycle)/heatCycle
	return now <= was+s.heat*cold*cold*cold*s.r.ExpFloat64()
}

func (s *packRuin) restore() {
	for k := len(s.added) - 1; k >= 0; k-- {
		b := s.added[k]
		last := len(s.bins[b]) - 1
		give(s.room(b), s.in.at(s.bins[b][last]))
		s.bins[b] = s.bins[b][:last]
	}
	for k, b := range s.ruined {
		for _, i := range s.bins[b] {
			give(s.room(b), s.in.at(i))
		}
		s.bins[b] = append(s.bins[b][:0], s.saved[k]...)
		for _, i := range s.bins[b] {
			take(s.room(b), s.in.at(i))
		}
	}
}

// packFill finds the fullest filling of a bin from a few items.
type packFill struct {
	s      *packRuin
	items  []int32
	rest   []float64 // size of the items from a position on
	room   []int64
	now    []int
	chosen []int
	full   float64
	budget int
}

// best fills bin b from items, which are sorted by size, and returns the others.
func (f *packFill) best(s *packRuin, b int, items []int32) []int32 {
	f.s, f.items, f.room = s, items, s.room(b)
	f.rest = append(f.rest[:0], make([]float64, len(items)+1)...)
	for k := len(items) - 1; k >= 0; k-- {
		f.rest[k] = f.rest[k+1] + s.size[items[k]]
	}
	f.now, f.chosen, f.full, f.budget = f.now[:0], f.chosen[:0], 0, fillNodes
	room := 0.0
	for d, v := range f.room {
		room += s.w[d] * float64(v)
	}
	f.search(0, 0, room)
	left := items[:0]
	c := 0
	for k, i := range items {
		if c < len(f.chosen) && f.chosen[c] == k {
			c++
			s.bins[b] = append(s.bins[b], i)
			take(f.room, s.in.at(i))
		} else {
			left = append(left, i)
		}
	}
	return left
}

func (f *packFill) search(at int, held, room float64) {
	if held > f.full {
		f.full = held
		f.chosen = append(f.chosen[:0], f.now...)
	}
	f.budget--
	for k := at; k < len(f.items); k++ {
		if f.budget <= 0 || held+min(room, f.rest[k]) <= f.full+1e-9 {
			return
		}
		need := f.s.in.at(f.items[k])
		// After an item that was left out, its equal would only repeat the search.
		if k > at && slices.Equal(need, f.s.in.at(f.items[k-1])) {
			continue
		}
		if !packFits(need, f.room) {
			continue
		}
		take(f.room, need)
		f.now = append(f.now, k)
		size := f.s.size[f.items[k]]
		f.search(k+1, held+size, room-size)
		f.now = f.now[:len(f.now)-1]
		give(f.room, need)
	}
}
