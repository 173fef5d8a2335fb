package rotations

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/caapi"
)

// idle is the step of a ca that swaps nothing.
const idle = "idle"

// within is how long a swap may take: certificates are renewed, and those of the old signer end.
func within() time.Duration { return 4**ttl + 5*time.Minute }

func (r *rig) wait(t *testing.T, step string, also func(*caapi.Status) error) {
	t.Helper()
	r.AwaitStep(t, within(), step, also)
}

// one is the condition that no other signer is left.
func one(s *caapi.Status) error {
	if len(s.Signers) != 1 || s.Signers[0].Role != "current" {
		return fmt.Errorf("%d signers are left", len(s.Signers))
	}
	return nil
}

// roots are the fingerprints of the current signer's.
func (r *rig) roots(t *testing.T) string {
	t.Helper()
	s, err := r.Rotation(t.Context(), nil)
	testkit.NoError(t, err)
	var all []string
	for _, signer := range s.Signers {
		if signer.Role == "current" {
			for _, root := range signer.Roots {
				all = append(all, root.SHA256)
			}
		}
	}
	if len(all) == 0 {
		t.Error(errors.New("the current signer has no root"))
	}
	return strings.Join(all, " ")
}
