package rotations

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/caapi"
)

// TestNobodyNoticesThatTheCAIsKilled kills the ca (SIGKILL) three times in one rotation, at its beginning, at the gate
// and while the mesh renews, and starts it again. A step that is over before it is seen is as good as the next one.
func TestNobodyNoticesThatTheCAIsKilled(t *testing.T) {
	r := start(t)
	order := []string{"prepare", "trust", "gate", "issue", "renew", "retire"}
	r.holds(t, "rotation", 3*time.Second, func(t *testing.T) {
		before := r.roots(t)
		r.Order(t, caapi.Command{Action: caapi.Rotate})
		for _, from := range []string{"prepare", "gate", "renew"} {
			var at string
			testkit.Eventually(t, within(), func() error {
				s, err := r.Rotation(t.Context(), nil)
				if err != nil {
					return err
				}
				if at = s.Step; slices.Index(order, at) < slices.Index(order, from) {
					return fmt.Errorf("the step is %s", at)
				}
				return nil
			})
			r.Plane().CA.Kill()
			testkit.NoError(t, r.Plane().StartCA(t.Context()))
			t.Logf("killed at %s", at)
		}
		r.wait(t, idle, one)
		if r.roots(t) == before {
			t.Error("the root is the one of before")
		}
	})
}
