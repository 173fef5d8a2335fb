package hostmesh

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/tests/internal/probe"
)

// Rotation asks the ca as an administrator how it stands, or gives it a command.
func (m *Mesh) Rotation(ctx context.Context, command *caapi.Command) (*caapi.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, answers)
	defer cancel()
	return m.plane.Rotation(ctx, probe.Client(m.Hub.DialBy), command)
}

// Order gives the ca a command that it must take.
func (m *Mesh) Order(t *testing.T, c caapi.Command) {
	t.Helper()
	if _, err := m.Rotation(t.Context(), &c); err != nil {
		t.Fatalf("%s: %v", c.Action, err)
	}
}

// AwaitStep waits until the ca is at a step and the condition holds, which may be nil, and logs the steps on the way.
func (m *Mesh) AwaitStep(t *testing.T, within time.Duration, step string, also func(*caapi.Status) error) {
	t.Helper()
	at, began := "", time.Now()
	testkit.Eventually(t, within, func() error {
		s, err := m.Rotation(t.Context(), nil)
		if err != nil {
			return err
		}
		var lagging []string
		for _, h := range s.Lagging.First {
			lagging = append(lagging, h.Name)
		}
		slices.Sort(lagging)
		if now := s.Step + " " + strings.Join(lagging, ", "); now != at {
			t.Logf("%5.1f s: %s, generation %d, %d holders, signers %v, it waits for %d: %s", time.Since(began).Seconds(), s.Step, s.Generation,
				s.Holders.Total, s.Holders.BySigner, s.Lagging.Total, strings.Join(lagging, ", "))
			at = now
		}
		if s.Step != step {
			return fmt.Errorf("the step is %s, want %s; it waits for %s, and %d holders such as %v; problems: %s", s.Step, step,
				strings.Join(s.Waits, "; "), s.Lagging.Total, s.Lagging.First[:min(3, len(s.Lagging.First))], strings.Join(s.Problems, "; "))
		}
		if also != nil {
			return also(s)
		}
		return nil
	})
}
