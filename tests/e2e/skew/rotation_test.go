package skew

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/tests/internal/load"
)

// A new ca rotates its root while others are of the previous release, which may know nothing of acknowledgements: those
// who do not acknowledge are waited for until they have renewed, and no request fails.
func TestANewCARotatesItsRootAmongOldServices(t *testing.T) {
	const ttl = 20 * time.Second
	previous, this := releases(t)
	for _, old := range [][]string{{"xds-server"}, {agent}, {"config-watcher", "xds-server", agent}} {
		t.Run("old "+strings.Join(old, " and "), func(t *testing.T) {
			m := start(t, func(service string) release {
				if slices.Contains(old, service) {
					return previous
				}
				return this
			}, "--workload-ttl", ttl.String(), "--min-workload-ttl", ttl.String(), "--max-workload-ttl", ttl.String())
			l := load.Start(t, load.Config{Rate: rate, URL: "http://" + address, Dial: m.client.Host.DialBy, New: true})
			l.Holds(t, "rotation", ttl, func(t *testing.T) {
				m.Order(t, caapi.Command{Action: caapi.Rotate})
				m.AwaitStep(t, 10*ttl, "idle", func(s *caapi.Status) error {
					if len(s.Signers) != 1 || s.Signers[0].ID == 1 {
						return fmt.Errorf("the signers are %v", s.Signers)
					}
					return nil
				})
			})
			m.works(t)
		})
	}
}
