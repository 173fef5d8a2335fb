package app

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

func TestMetricsFollowTheRules(t *testing.T) {
	h := start(t, nil)
	families, err := h.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	own := 0
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "fairlead_ca_") {
			own++
		}
	}
	if own < 12 {
		t.Errorf("%d metrics of the ca, want them all from the start", own)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}
