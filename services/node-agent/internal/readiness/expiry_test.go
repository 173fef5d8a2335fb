package readiness

import (
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
)

func TestCertificateThatIsNotRenewedEndsReadinessBeforeItExpires(t *testing.T) {
	ca := testkit.PKI(t)
	now := time.Now()
	for name, tc := range map[string]struct {
		life, left time.Duration
		want       string
	}{
		"long before the end":                {24 * time.Hour, time.Hour, ""},
		"two minutes before the end":         {24 * time.Hour, 2 * time.Minute, ""},
		"a minute before the end":            {24 * time.Hour, time.Minute, "expires in 1m0s and has not been renewed"},
		"short-lived, a minute before":       {10 * time.Minute, time.Minute, ""},
		"short-lived, in its last twentieth": {10 * time.Minute, 29 * time.Second, "expires in 29s"},
		"at the end":                         {24 * time.Hour, 0, "expired at"},
	} {
		t.Run(name, func(t *testing.T) {
			end := now.Add(tc.left)
			err := CheckCertificate(ca.NewSVID("a", "b", testkit.Valid(end.Add(-tc.life), end)), end.Truncate(time.Second).Add(-tc.left))
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}
