package cost

import (
	"cmp"
	"math/big"
	"slices"
)

// Use is an owner's part of a thing that several share: Weight of its capacity, in the
// capacity's unit.
type Use struct {
	Owner  Owner
	Weight int64
}

// Share is an owner's part of an amount.
type Share struct {
	Owner Owner
	Cost  Micro
}

// Split divides an amount by weight. The unused capacity is idle; where more is
// used than there is, nothing is. Shares and idle add up to the amount, none is negative, and
// the rounding rest goes to the shares that lose most by rounding, ties to the first. Uses without
// weight have no share.
func Split(amount Micro, capacity int64, uses []Use) (shares []Share, idle Micro) {
	used := new(big.Int)
	var counted []Use
	for _, u := range uses {
		if u.Weight > 0 {
			used.Add(used, big.NewInt(u.Weight))
			counted = append(counted, u)
		}
	}
	whole := new(big.Int).Set(used)
	if c := big.NewInt(capacity); c.Cmp(whole) > 0 {
		whole = c
	}
	if amount <= 0 || whole.Sign() <= 0 {
		return nil, max(0, amount)
	}
	// The last part is the idle one.
	weights := make([]*big.Int, len(counted)+1)
	for i, u := range counted {
		weights[i] = big.NewInt(u.Weight)
	}
	weights[len(counted)] = new(big.Int).Sub(whole, used)
	parts, remainders := make([]Micro, len(weights)), make([]*big.Int, len(weights))
	rest := amount
	for i, w := range weights {
		n := new(big.Int).Mul(big.NewInt(int64(amount)), w)
		q, r := n.QuoRem(n, whole, new(big.Int))
		parts[i], remainders[i] = Micro(q.Int64()), r
		rest -= parts[i]
	}
	order := make([]int, len(weights))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return remainders[b].Cmp(remainders[a]) })
	for _, i := range order[:rest] {
		parts[i]++
	}
	for i, u := range counted {
		if parts[i] > 0 {
			shares = append(shares, Share{Owner: u.Owner, Cost: parts[i]})
		}
	}
	return shares, parts[len(counted)]
}

func byRemainder(n int, remainder func(int) int64) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(remainder(b), remainder(a)) })
	return order
}
