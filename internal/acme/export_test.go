package acme

import (
	"context"

	"github.com/mholt/acmez/v3/acme"

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

// ForgetShown deactivates all that an account has been authorized for (RFC 8555 §7.5.2).
func (a *Authority) ForgetShown(ctx context.Context, account tenant.AuthorityAccount) error {
	urls, _, err := a.listOrders(ctx, account, account.OrdersURL)
	if err != nil {
		return err
	}
	for _, url := range urls {
		order, err := a.client().GetOrder(ctx, known(account), acme.Order{Location: url})
		if err != nil {
			return err
		}
		for _, authz := range order.Authorizations {
			if _, err := a.client().DeactivateAuthorization(ctx, known(account), authz); err != nil {
				return err
			}
		}
	}
	return nil
}
