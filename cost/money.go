package cost

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

// Micro is an amount of money in millionths of a currency's unit. Sums of them are exact.
type Micro int64

const unit = 1_000_000

// String is the amount as a decimal number with at least two digits behind the point.
func (m Micro) String() string {
	sign := ""
	if m < 0 {
		sign, m = "-", -m
	}
	digits := strings.TrimRight(fmt.Sprintf("%06d", m%unit), "0")
	return fmt.Sprintf("%s%d.%s", sign, m/unit, digits+strings.Repeat("0", max(0, 2-len(digits))))
}

// Parse reads a decimal amount that is not negative, rounded to millionths.
func Parse(s string) (Micro, bool) {
	if s == "" || strings.Trim(s, "0123456789.") != "" {
		return 0, false
	}
	r, ok := new(big.Rat).SetString(s)
	if !ok {
		return 0, false
	}
	r.Mul(r, big.NewRat(unit, 1)).Add(r, big.NewRat(1, 2))
	q := new(big.Int).Quo(r.Num(), r.Denom())
	if !q.IsInt64() {
		return 0, false
	}
	return Micro(q.Int64()), true
}

// part is m × numerator ÷ denominator, rounded down, without overflow; none may be negative.
func (m Micro) part(numerator, denominator int64) Micro {
	n := new(big.Int).Mul(big.NewInt(int64(m)), big.NewInt(numerator))
	return Micro(n.Quo(n, big.NewInt(denominator)).Int64())
}

// Cents rounds amounts to hundredths so that their rounded sum is exact: the amounts that
// lose most by rounding down are rounded up.
func Cents(amounts []Micro) []Micro {
	const cent = unit / 100
	var total Micro
	for _, a := range amounts {
		total += a
	}
	out := make([]Micro, len(amounts))
	rest := (total + cent/2) / cent
	for i, a := range amounts {
		out[i] = a / cent
		rest -= out[i]
	}
	for _, i := range byRemainder(len(amounts), func(i int) int64 { return int64(amounts[i] % cent) }) {
		if rest <= 0 {
			break
		}
		out[i]++
		rest--
	}
	for i := range out {
		out[i] *= cent
	}
	return out
}

// Float is the amount for metrics, which are no books.
func (m Micro) Float() float64 { return float64(m) / unit }

// Rounded is an amount for people: two decimals, or as many as its first two digits need. What is no number stays as it
// is.
func Rounded(amount string) string {
	f, err := strconv.ParseFloat(amount, 64)
	if err != nil {
		return amount
	}
	places := 2
	for least := 0.1; f > 0 && f < least && places < 6; least /= 10 {
		places++
	}
	return strconv.FormatFloat(f, 'f', places, 64)
}
