// Package attack attacks whole meshes with a client of its own, as somebody who owns one workload or nothing at all
// would, and faults them. Every attack is bounded in count and time and stays on loopback. While it runs, no service
// may pass the memory limit that deploy/ sets, and rightful proxies must be served as before.
package attack

import (
	"flag"
	"testing"

	"fairlead.dev/tests/e2e/internal/fleet"
)

// all runs every attack; `make attacks` sets it. Without it only two run, so that `make test` stays quick.
var all = flag.Bool("all", false, "run every attack, not only two of them")

// binaries are the programs under test.
var binaries fleet.Binaries

func TestMain(m *testing.M) {
	flag.Parse()
	fleet.Main(m, &binaries)
}

// needsAll skips the test unless every attack is to run.
func needsAll(t *testing.T) {
	t.Helper()
	if !*all {
		t.Skip("runs only with -all, as `make attacks` does: it takes too long for `make test`")
	}
}
