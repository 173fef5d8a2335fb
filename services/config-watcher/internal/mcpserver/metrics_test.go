package mcpserver

import (
	"errors"
	"fmt"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"fairlead.dev/pkg/testkit"
)

// value is the sum of a metric over the series that have a label's value; "" is all.
func (f *fixture) value(name, label string) float64 {
	f.t.Helper()
	all, err := f.metrics.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	sum := 0.0
	for _, m := range all {
		for _, series := range m.Metric {
			if m.GetName() == "fairlead_config_watcher_mcp_"+name && (label == "" || series.Label[0].GetValue() == label) {
				sum += series.GetCounter().GetValue() + series.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// TestWhatIsCounted: streams while they are open, messages and bytes by kind, what clients reject, and what is refused.
func TestWhatIsCounted(t *testing.T) {
	f := serve(t)
	f.ready.Store(false)
	if err := f.sotw().Drain(); err == nil {
		t.Error("it is too early")
	}
	f.ready.Store(true)
	f.put(entry("a/one", "memory", 80))
	s, d := f.sotw(), f.delta()
	first := ask(t, s, entries)
	ask(t, s, "networking.istio.io/v9/ServiceEntry")
	testkit.NoError(t, d.Subscribe(entries))
	if _, err := d.Next(entries); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		f.put(entry("a/one", "memory", uint32(81+i)))
		first = receive(t, s, entries)
	}
	testkit.NoError(t, s.Answer(first, "", errors.New("no")))
	eventually := func(name, label string, want float64) {
		t.Helper()
		testkit.Eventually(t, testkit.Patience, func() error {
			if got := f.value(name, label); got != want {
				return fmt.Errorf("%s of %q is %v, want %v", name, label, got, want)
			}
			return nil
		})
	}
	eventually("clients", "sotw", 1)
	eventually("clients", "delta", 1)
	eventually("rejected_lists_total", "ServiceEntry", 1)
	eventually("sent_lists_total", unknownKind, 1)
	eventually("refused_streams_total", "early", 1)
	if n, bytes := f.value("sent_lists_total", "ServiceEntry"), f.value("sent_bytes_total", "ServiceEntry"); n < 4 || bytes < 4*50 {
		t.Errorf("%v lists of %v bytes", n, bytes)
	}
	testkit.NoError(t, s.Send(&discovery.DiscoveryRequest{}))
	_ = s.Drain()
	eventually("refused_streams_total", "request", 1)
	eventually("clients", "sotw", 0)
	close(f.stop)
	eventually("clients", "delta", 0)
	eventually("refused_streams_total", "stopping", 1)
	problems, err := testutil.GatherAndLint(f.metrics)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}
