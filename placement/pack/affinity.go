package pack

// spread counts the pairs of an Org and a bin that holds items of it: the fewer, the more items share a bin with
// their kin.
func (in *packInstance) spread(bins packBins) int {
	last := make([]int, in.orgs)
	total := 0
	for b, items := range bins {
		for _, i := range items {
			if org := in.org[i]; org >= 0 && last[org] != b+1 {
				last[org] = b + 1
				total++
			}
		}
	}
	return total
}

// polishRounds bounds polish; a round that moves nothing ends it earlier.
const polishRounds = 4

// polish moves items without kin in their bin to a bin that has kin and room: the number of bins stays, the spread
// shrinks with every move. The improvement ignores Orgs, so this is where affinity breaks its ties.
func (in *packInstance) polish(bins packBins) {
	count := make([]map[int32]int, len(bins)) // items by Org
	where := make([][]int32, in.orgs)         // bins by Org
	free := make([]int64, len(bins)*in.d)
	room := func(b int) []int64 { return free[b*in.d : (b+1)*in.d] }
	for i := range free {
		free[i] = in.limit
	}
	for b, items := range bins {
		count[b] = map[int32]int{}
		for _, i := range items {
			take(room(b), in.at(i))
			if org := in.org[i]; org >= 0 {
				if count[b][org]++; count[b][org] == 1 {
					where[org] = append(where[org], int32(b))
				}
			}
		}
	}
	for range polishRounds {
		moved := false
		for b := range bins {
			for k := 0; k < len(bins[b]); k++ {
				i := bins[b][k]
				org := in.org[i]
				// A bin never loses its last item: removing a bin is the improvement's task.
				if org < 0 || count[b][org] != 1 || len(where[org]) < 2 || len(bins[b]) == 1 {
					continue
				}
				for _, to := range where[org] {
					if int(to) == b || count[to][org] == 0 || !packFits(in.at(i), room(int(to))) {
						continue
					}
					bins[b] = append(bins[b][:k], bins[b][k+1:]...)
					bins[to] = append(bins[to], i)
					give(room(b), in.at(i))
					take(room(int(to)), in.at(i))
					count[b][org], count[to][org] = 0, count[to][org]+1
					moved = true
					k--
					break
				}
			}
		}
		if !moved {
			return
		}
	}
}
