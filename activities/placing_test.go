package activities_test

import (
	"testing"

	"github.com/prego/prego/lab/pgtest"
	fleet "github.com/prego/prego/lab/placing"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// placing is a fleet on a real database, with what steps need of it.
type placing struct{ *fleet.Fleet }

func newPlacing(t testing.TB, conns int32) *placing { return &placing{fleet.New(t, conns)} }
