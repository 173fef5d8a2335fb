package telemetry

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestAllValuesOfALabelAreThereFromTheStart(t *testing.T) {
	type reason string
	reg := prometheus.NewRegistry()
	opts := prometheus.CounterOpts{Name: "refused_total", Help: "Refusals."}
	CounterVec(reg, opts, "reason", reason("late"), reason("large")).WithLabelValues("large").Inc()
	want := "# HELP refused_total Refusals.\n# TYPE refused_total counter\n" +
		"refused_total{reason=\"large\"} 1\nrefused_total{reason=\"late\"} 0\n"
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	CounterVec(nil, opts, "reason", "late").WithLabelValues("late").Inc() // is registered nowhere
}
