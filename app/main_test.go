package app

import (
	"testing"

	"github.com/prego/prego/lab/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
