package acme

import (
	"context"

	"github.com/prego/prego/tenant"
)

// CountOrders is how many orders the authority lists for an account.
func (a *Authority) CountOrders(ctx context.Context, account tenant.AuthorityAccount) (n int, err error) {
	for next := account.OrdersURL; next != ""; {
		var urls []string
		if urls, next, err = a.listOrders(ctx, account, next); err != nil {
			return n, err
		}
		n += len(urls)
	}
	return n, nil
}
