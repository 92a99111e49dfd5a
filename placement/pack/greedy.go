package pack

import (
	"math"
	"slices"
)

// initial is the best of several greedy packings: fewest bins, then fewest pairs of an Org and a bin, then the
// earlier in this list.
func (in *packInstance) initial() packBins {
	if in.n == 0 {
		return packBins{}
	}
	var best packBins
	spread := 0
	offer := func(bins packBins) {
		s := in.spread(bins)
		if best == nil || len(bins) < len(best) || (len(bins) == len(best) && s < spread) {
			best, spread = bins, s
		}
	}
	var orders [][]int32
	for _, key := range in.keys() {
		orders = append(orders, in.byKey(key))
	}
	for _, o := range orders {
		offer(in.firstFit(o, true))
		// Affinity costs bins when it fills the gaps of an Org's bins with items that First Fit would have put
		// elsewhere; then it is only a tie-break.
		offer(in.firstFit(o, false))
	}
	for _, o := range orders[:2] {
		offer(in.bestFit(o))
	}
	offer(in.binCentric(orders[0]))
	return best
}

// keys are the orders of the items, largest first: the dominant dimension (the policy's), the scarce-weighted sum,
// the plain sum, and the sum of squares.
func (in *packInstance) keys() [][]float64 {
	dominant, sum, squares := make([]float64, in.n), make([]float64, in.n), make([]float64, in.n)
	for i := range in.n {
		for _, v := range in.at(int32(i)) {
			f := float64(v) / float64(in.limit)
			dominant[i] = max(dominant[i], f)
			sum[i] += f
			squares[i] += f * f
		}
	}
	return [][]float64{dominant, in.weight, sum, squares}
}

// packOpen is a packing in the making.
type packOpen struct {
	in    *packInstance
	bins  packBins
	free  []int64   // by bin and dimension
	byOrg [][]int32 // bins that hold an item of the Org, in order of opening
}

func (o *packOpen) room(b int) []int64 { return o.free[b*o.in.d : (b+1)*o.in.d] }

func (o *packOpen) put(b int, i int32) {
	o.bins[b] = append(o.bins[b], i)
	take(o.room(b), o.in.at(i))
	if org := o.in.org[i]; org >= 0 && !slices.Contains(o.byOrg[org], int32(b)) {
		o.byOrg[org] = append(o.byOrg[org], int32(b))
	}
}

func (o *packOpen) open() int {
	o.bins = append(o.bins, nil)
	for range o.in.d {
		o.free = append(o.free, o.in.limit)
	}
	return len(o.bins) - 1
}

// firstFit puts each item into the first bin that has room. All bins with room are equally good to it, so with
// affinity a bin with an item of the Org goes first.
func (in *packInstance) firstFit(order []int32, affinity bool) packBins {
	o := &packOpen{in: in, byOrg: make([][]int32, in.orgs)}
	tree := newPackTree(in)
	for _, i := range order {
		need, b := in.at(i), -1
		if org := in.org[i]; affinity && org >= 0 {
			for _, k := range o.byOrg[org] {
				if packFits(need, o.room(int(k))) && (b < 0 || int(k) < b) {
					b = int(k)
				}
			}
		}
		if b < 0 {
			b = tree.first(need)
		}
		if b < 0 || b >= len(o.bins) {
			b = o.open()
		}
		o.put(b, i)
		tree.set(b, o.room(b))
	}
	return o.bins
}

// packTree finds the first bin with room in logarithmic time while one dimension decides: each node keeps the most
// room below it by dimension. Bins that are not open yet have no room.
type packTree struct {
	d, leaves int
	most      []int64
}

func newPackTree(in *packInstance) *packTree {
	t := &packTree{d: in.d, leaves: 1}
	for t.leaves < in.n {
		t.leaves *= 2
	}
	t.most = make([]int64, 2*t.leaves*t.d)
	return t
}

func (t *packTree) set(b int, room []int64) {
	at := t.leaves + b
	copy(t.most[at*t.d:], room)
	for at /= 2; at > 0; at /= 2 {
		for d := range t.d {
			t.most[at*t.d+d] = max(t.most[2*at*t.d+d], t.most[(2*at+1)*t.d+d])
		}
	}
}

func (t *packTree) first(need []int64) int { return t.below(1, need) }

func (t *packTree) below(at int, need []int64) int {
	if !packFits(need, t.most[at*t.d:(at+1)*t.d]) {
		return -1
	}
	if at >= t.leaves {
		return at - t.leaves
	}
	if b := t.below(2*at, need); b >= 0 {
		return b
	}
	return t.below(2*at+1, need)
}

// window bounds how many bins best fit examines, and how many items the bin-centric packing: with it, a hundred
// thousand items still take seconds.
const window = 2048

// bestFit puts each item where the room, weighted by scarcity, is least.
func (in *packInstance) bestFit(order []int32) packBins {
	o := &packOpen{in: in, byOrg: make([][]int32, in.orgs)}
	for _, i := range order {
		need := in.at(i)
		b, least, shares := -1, math.Inf(1), false
		for k := max(0, len(o.bins)-window); k < len(o.bins); k++ {
			room := o.room(k)
			if !packFits(need, room) {
				continue
			}
			left := 0.0
			for d, v := range room {
				left += in.scarce[d] * float64(v)
			}
			switch {
			case left < least:
				b, least, shares = k, left, o.holds(k, in.org[i])
			case left == least && !shares && o.holds(k, in.org[i]):
				b, shares = k, true
			}
		}
		if b < 0 {
			b = o.open()
		}
		o.put(b, i)
	}
	return o.bins
}

func (o *packOpen) holds(b int, org int32) bool {
	return org >= 0 && slices.ContainsFunc(o.bins[b], func(i int32) bool { return o.in.org[i] == org })
}

// binCentric fills one bin after the other, each time with the item whose demand points most where the room is: the
// largest scarce-weighted dot product with it (Panigrahy et al., Heuristics for Vector Bin Packing, 2011).
func (in *packInstance) binCentric(order []int32) packBins {
	o := &packOpen{in: in, byOrg: make([][]int32, in.orgs)}
	rest := append([]int32(nil), order...)
	w := make([]float64, in.d)
	for len(rest) > 0 {
		b := o.open()
		for {
			room := o.room(b)
			for d := range w {
				w[d] = in.scarce[d] * float64(room[d])
			}
			// A stride over the rest, so that small items stay in sight.
			pick, most, shares := -1, -1.0, false
			for k := 0; k < len(rest); k += 1 + len(rest)/window {
				need := in.at(rest[k])
				if !packFits(need, room) {
					continue
				}
				dot := 0.0
				for d, v := range need {
					dot += w[d] * float64(v)
				}
				switch {
				case dot > most:
					pick, most, shares = k, dot, o.holds(b, in.org[rest[k]])
				case dot == most && !shares && o.holds(b, in.org[rest[k]]):
					pick, shares = k, true
				}
			}
			if pick < 0 {
				break
			}
			o.put(b, rest[pick])
			rest = append(rest[:pick], rest[pick+1:]...)
		}
	}
	return o.bins
}
