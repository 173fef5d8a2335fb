package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"fairlead.dev/tests/e2e/internal/fleet"
)

// banTakesEffect is what the guide promises: endpoints and streams of a banned identity are gone within a second, give
// or take what a loaded machine adds.
const banTakesEffect = 5 * time.Second

// TestBan bans the servers' identity in a running mesh: nobody is sent to them and they have no stream, until the ban
// is lifted; and the audit tells who did it.
func TestBan(t *testing.T) {
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/echo.yaml"}})
	m.WaitReady(t)
	client := m.From(t, "client-0")
	answers := func(want int) func() error {
		return func() error {
			a, err := client.Get(t.Context(), "http://server/")
			if err == nil && a.Status != want {
				err = fmt.Errorf("status %d, want %d", a.Status, want)
			}
			return err
		}
	}
	connected := func(want bool) func() error {
		return func() error {
			_, out, errOut := m.CLI(t, "proxy-status")
			if strings.Contains(out, "server-v1") != want {
				return fmt.Errorf("connected is not %v:\n%s%s", want, out, errOut)
			}
			return nil
		}
	}
	cli := func(wantCode int, want string, args ...string) {
		t.Helper()
		code, out, errOut := m.CLI(t, args...)
		if code != wantCode || !strings.Contains(out+errOut, want) {
			t.Errorf("%s: exit code %d, want %d with %q: %s%s", strings.Join(args, " "), code, wantCode, want, out, errOut)
		}
	}
	m.Eventually(t, takesEffect, func() error { return errors.Join(answers(200)(), connected(true)()) })
	cli(0, "sa/server is banned until it is unbanned", "config", "ban", "apps/server", "--reason", "its key was stolen")
	m.Eventually(t, banTakesEffect, answers(503))
	m.Eventually(t, banTakesEffect, connected(false))
	cli(0, "its key was stolen", "config", "bans")
	cli(3, "the mesh needs this identity", "config", "ban", "istio-system/xds-server")
	cli(0, "no longer banned", "config", "unban", "apps/server")
	m.Eventually(t, takesEffect, func() error { return errors.Join(answers(200)(), connected(true)()) })
	cli(0, "create IdentityBan apps.server", "config", "audit", "--verify")
	cli(0, "admin", "config", "whoami")
}
