package store

import (
	"testing"

	"github.com/prego/prego/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
