package sim

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
)

func TestNamesAreTheCloudsOwn(t *testing.T) {
	t.Parallel()
	s := &Sim{net: &network{n: 5}}
	ask := func(name string, kind dnsmessage.Type, f *Fault) *dnsmessage.Message {
		b := s.name(dnsmessage.Message{Header: dnsmessage.Header{ID: 7}, Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}}}, f)
		if b == nil {
			return nil
		}
		var m dnsmessage.Message
		require.NoError(t, m.Unpack(b))
		require.True(t, m.Response)
		require.EqualValues(t, 7, m.ID)
		return &m
	}
	m := ask("Mirror.Cloud.example.", dnsmessage.TypeA, nil)
	require.Len(t, m.Answers, 1)
	a, ok := m.Answers[0].Body.(*dnsmessage.AResource)
	require.True(t, ok)
	require.Equal(t, [4]byte{10, 99, 5, 1}, a.A)
	m = ask(MirrorName+".", dnsmessage.TypeAAAA, nil)
	require.Empty(t, m.Answers)
	require.Equal(t, dnsmessage.RCodeSuccess, m.RCode, "the name is there")
	require.Equal(t, dnsmessage.RCodeNameError, ask("elsewhere.example.", dnsmessage.TypeA, nil).RCode)
	require.Equal(t, dnsmessage.RCodeServerFailure, ask(MirrorName+".", dnsmessage.TypeA, &Fault{Action: "fail"}).RCode)
	require.Nil(t, ask(MirrorName+".", dnsmessage.TypeA, &Fault{Action: "drop"}))
}

func TestFaultsSuitTheKindOfHosts(t *testing.T) {
	t.Parallel()
	light, err := New(Config{StateDir: t.TempDir(), Token: "t"})
	require.NoError(t, err)
	real, err := New(Config{StateDir: t.TempDir(), Token: "t", Machines: t.TempDir()})
	require.NoError(t, err)
	for _, f := range []Fault{{Kind: "dns", Action: "drop"}, {Kind: "publish", Record: "*.example.com"}} {
		for _, cloud := range []*Sim{light, real} {
			_, err := cloud.Inject(f)
			require.NoError(t, err)
		}
	}
	for _, f := range []Fault{{Kind: "mirror", Action: "reset"}} {
		_, err := light.Inject(f)
		require.ErrorContains(t, err, "--hosts machine")
		id, err := real.Inject(f)
		require.NoError(t, err)
		require.True(t, real.Withdraw(id))
		require.False(t, real.Withdraw(id))
	}
	for _, f := range []Fault{{Kind: "stop_heartbeats"}, {Kind: "container", Action: "die"}} {
		_, err := real.Inject(f)
		require.ErrorContains(t, err, "process hosts only")
		_, err = light.Inject(f)
		require.NoError(t, err)
	}
	for want, f := range map[string]Fault{
		"a fault of kind mirror must be one of respond, reset, truncate, delay": {Kind: "mirror", Action: "drop"},
		"status must be 400 to 599":                            {Kind: "mirror", Action: "respond"},
		"a fault of kind dns must be one of drop, fail, delay": {Kind: "dns", Action: "reset"},
	} {
		_, err := real.Inject(f)
		require.ErrorContains(t, err, want)
	}
}
