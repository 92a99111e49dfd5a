package rooted

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// address gives the host a floating address, which the provider routes to it, or takes it away. Both can be repeated.
func (h *Machine) address(ctx context.Context, verb, address string) error {
	ip, err := netip.ParseAddr(address)
	if err != nil || !ip.Is4() || ip.IsMulticast() || ip.IsUnspecified() || (ip.IsLoopback() && h.Root == "/") {
		return fmt.Errorf("%s is no address that a server may have", address)
	}
	if verb == "add" {
		if err := h.remember(rememberedAddress + ip.String()); err != nil {
			return err
		}
	} else if err := h.forget(rememberedAddress + ip.String()); err != nil {
		return err
	}
	if h.Root != "/" {
		return nil // every address of the loopback network is there already
	}
	device, err := defaultDevice(ctx)
	if err != nil {
		return err
	}
	if verb == "add" {
		_, err = program(ctx, nil, "/usr/sbin/ip", "address", "replace", ip.String()+"/32", "dev", device)
		return err
	}
	_, err = program(ctx, nil, "/usr/sbin/ip", "address", "del", ip.String()+"/32", "dev", device)
	if err != nil && strings.Contains(err.Error(), "Cannot assign requested address") {
		return nil // it was not there
	}
	return err
}

// defaultDevice is the interface that the default route leads through: the public one.
func defaultDevice(ctx context.Context) (string, error) {
	out, err := program(ctx, nil, "/usr/sbin/ip", "-4", "route", "show", "default")
	if err != nil {
		return "", err
	}
	words := strings.Fields(out)
	for i, w := range words {
		if w == "dev" && i+1 < len(words) {
			return words[i+1], nil
		}
	}
	return "", errors.New("the host has no default route")
}
