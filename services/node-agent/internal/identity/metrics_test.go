package identity

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"fairlead.dev/pkg/testkit"
)

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

func TestExpiryIsThatOfTheCertificateAndOfTheFirstRoot(t *testing.T) {
	clock := testkit.NewClock(time.Now().Truncate(time.Second))
	ca := testkit.NewCA(t, "cluster.local", clock.Now())
	source := ca.NewSVID("a", "b", testkit.Valid(clock.Now().Add(-time.Hour), clock.Now().Add(time.Hour)))
	reg := prometheus.NewRegistry()
	e := register(reg, source, Files, clock)
	testkit.Background(t, e.Run)
	want := func(text string) {
		t.Helper()
		testkit.Eventually(t, testkit.Patience, func() error {
			return testutil.GatherAndCompare(reg, strings.NewReader(`
				# HELP istio_agent_cert_expiry_seconds Seconds until a certificate that Envoy holds expires; negative once it has.
				# TYPE istio_agent_cert_expiry_seconds gauge
			`+text), "istio_agent_cert_expiry_seconds")
		})
	}
	years := clock.Now().AddDate(10, 0, 0).Sub(clock.Now()).Seconds()
	lines := func(leaf, root float64) string {
		return "istio_agent_cert_expiry_seconds{resource_name=\"ROOTCA\"} " + number(root) +
			"\nistio_agent_cert_expiry_seconds{resource_name=\"default\"} " + number(leaf) + "\n"
	}
	want(lines(3600, years))
	clock.Advance(2 * time.Hour)
	want(lines(-3600, years-7200))
	sooner := testkit.NewCA(t, "cluster.local", clock.Now().AddDate(-9, 0, 0))
	m := *material(t, source)
	m.RootsPEM = append(append([]byte{}, m.RootsPEM...), sooner.RootPEM...)
	source.Set(&m)
	want(lines(-3600, clock.Now().AddDate(-9, 0, 0).AddDate(10, 0, 0).Sub(clock.Now()).Seconds()))
}
