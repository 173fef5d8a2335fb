package gatewayname

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// States of a name, as labels and in State.
const (
	// StateFresh means that the last look-up gave its addresses.
	StateFresh = "fresh"
	// StateStale means that the last good ones stay.
	StateStale = "stale"
	// StateMissing means that there are none.
	StateMissing = "missing"
	// StatePending means that it has not been looked up yet.
	StatePending = "pending"
)

func (e *entry) state() string {
	switch {
	case !e.tried:
		return StatePending
	case len(e.addresses) == 0:
		return StateMissing
	case e.err != nil:
		return StateStale
	default:
		return StateFresh
	}
}

// State is a name as /debug/gateway-names shows it.
type State struct {
	Name      string   `json:"name"`
	State     string   `json:"state"`
	Addresses []string `json:"addresses"`
	// Error is why the last look-up failed.
	Error string `json:"error,omitempty"`
}

// States lists all names.
func (t *Table) States() []State {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := []State{}
	for name, e := range t.entries {
		s := State{Name: name, State: e.state(), Addresses: e.addresses}
		if e.err != nil {
			s.Error = e.err.Error()
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b State) int { return strings.Compare(a.Name, b.Name) })
	return out
}

type collector struct {
	t     *Table
	names *prometheus.Desc
}

// Collect registers the table's metric.
func (t *Table) Collect(reg prometheus.Registerer) {
	reg.MustRegister(&collector{t, prometheus.NewDesc("fairlead_config_watcher_gateway_names",
		"Host names of east-west gateways, by state: of stale ones the last good addresses count, missing ones have none.", []string{"state"},
		nil)})
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) { ch <- c.names }

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	counts := map[string]int{}
	for _, e := range c.t.entries {
		counts[e.state()]++
	}
	for _, state := range []string{StateFresh, StateStale, StateMissing, StatePending} {
		ch <- prometheus.MustNewConstMetric(c.names, prometheus.GaugeValue, float64(counts[state]), state)
	}
}
