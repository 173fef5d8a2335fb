package issuance

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/authority/authoritytest"
	"fairlead.dev/services/ca/internal/rejection"
)

// One caller's refusals do not fill the log, another's are written all the same, and what was left out is counted in
// the next line.
func TestRefusalsOfOneCallerDoNotFillTheLog(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ca, clock := testkit.NewCA(t, "cluster.local", start), testkit.NewClock(start)
	var log bytes.Buffer
	s := newService(t, ca, clock, authoritytest.New(t, ca.Cert, ca.Key), &log)
	refuse := func(account string, times int) int {
		t.Helper()
		log.Reset()
		ctx := auth.NewContext(t.Context(), auth.Peer{ID: ca.ID("default", account), Method: auth.MethodJWT})
		for range times {
			if _, err := s.CreateCertificate(ctx, &security.IstioCertificateRequest{}); status.Code(err) != codes.InvalidArgument {
				t.Fatal(err)
			}
		}
		return strings.Count(log.String(), "\n")
	}
	if got := refuse("greedy", 1000); got != refusedLinesAtOnce {
		t.Errorf("%d lines for a thousand refusals, want %d", got, refusedLinesAtOnce)
	}
	if got := refuse("modest", 1); got != 1 {
		t.Errorf("%d lines for another caller's refusal, want 1", got)
	}
	clock.Advance(time.Second)
	if got := refuse("greedy", 2); got != 1 || !strings.Contains(log.String(), `"lines_left_out":980`) {
		t.Errorf("%d lines a second later, want one that counts the 980 left out: %s", got, log.String())
	}
	if got := s.cfg.Metrics.Counts().Refused[rejection.CSRMalformed]; got != 1003 {
		t.Errorf("%d refusals counted, want all 1003", got)
	}
}
