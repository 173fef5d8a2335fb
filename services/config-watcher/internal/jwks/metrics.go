package jwks

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/object"
)

// result is the outcome of a fetch, as a label.
type result string

const (
	resultOK          result = "ok"
	resultUnreachable result = "unreachable"
	resultForbidden   result = "forbidden"
	resultUnusable    result = "unusable"
)

func (a answer) result() result {
	switch {
	case a.err == nil:
		return resultOK
	case a.problem == configv1.JwksProblem_JWKS_PROBLEM_FORBIDDEN:
		return resultForbidden
	case a.problem == configv1.JwksProblem_JWKS_PROBLEM_UNUSABLE:
		return resultUnusable
	default:
		return resultUnreachable
	}
}

// States of a source, as labels and in State.
const (
	// StateFresh means that its keys were fetched when they were last due.
	StateFresh = "fresh"
	// StateStale means that the last good ones count.
	StateStale = "stale"
	// StateMissing means that there are none.
	StateMissing = "missing"
	// StateLeftOut means that it is not fetched, because there are too many.
	StateLeftOut = "left_out"
	// StatePending means that the first attempt is under way.
	StatePending = "pending"
)

func (e *entry) stateName() string {
	switch {
	case !e.admitted:
		return StateLeftOut
	case !e.tried:
		return StatePending
	case e.keys == nil:
		return StateMissing
	case e.failures > 0:
		return StateStale
	default:
		return StateFresh
	}
}

// State is a source as /debug/jwks shows it.
type State struct {
	URI    string `json:"uri,omitempty"`
	Issuer string `json:"issuer,omitempty"`
	// Name is that of the Jwks resource.
	Name  string `json:"name"`
	State string `json:"state"`
	Keys  int    `json:"keys"`
	// Dropped are keys of the last answer that cannot be used.
	Dropped []string `json:"dropped,omitempty"`
	// Fetched is when the keys were fetched, and Next when they are to be fetched again; nil if never.
	Fetched *time.Time `json:"fetched,omitempty"`
	Next    *time.Time `json:"next,omitempty"`
	// Failures counts the attempts since the last good one, and Error is why the last one failed.
	Failures int      `json:"failures,omitempty"`
	Error    string   `json:"error,omitempty"`
	Owners   []string `json:"owners"`
}

// States lists all sources, for administrators: errors tell what answers where.
func (t *Table) States() []State {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := []State{}
	for _, e := range t.entries {
		s := State{URI: e.source.URI, Issuer: e.source.Issuer, Name: e.source.Name(), State: e.stateName(), Keys: e.count,
			Failures: e.failures}
		for _, d := range e.dropped {
			s.Dropped = append(s.Dropped, d.String())
		}
		if at := e.fetched; !at.IsZero() {
			s.Fetched = &at
		}
		if at := e.next; !at.IsZero() {
			s.Next = &at
		}
		if e.err != nil {
			s.Error = e.err.Error()
		}
		for k := range e.owners {
			s.Owners = append(s.Owners, k.Namespace+"/"+k.Name)
		}
		slices.Sort(s.Owners)
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b State) int {
		return compareSources(contract.KeySource{URI: a.URI, Issuer: a.Issuer}, contract.KeySource{URI: b.URI, Issuer: b.Issuer})
	})
	return out
}

// Problems says, for the owner of a RequestAuthentication, which of its keys are not there, or cannot be fetched any
// more; nil if nothing is the matter. The texts do not say what an address answers, which its owner could not ask
// itself.
func (t *Table) Problems(k object.Key) (out []string, missing bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.owners[k]
	if o == nil {
		return nil, false
	}
	for _, w := range o.sources {
		e := t.entries[w.KeySource]
		if e == nil {
			continue
		}
		switch e.stateName() {
		case StateFresh, StatePending:
		case StateStale:
			out = append(out, "keys of "+e.source.String()+" cannot be fetched again, the last good ones count until "+
				e.fetched.Add(contract.KeysMaxAge).UTC().Format(time.RFC3339)+": "+brief(e.problem))
		default:
			missing = true
			out = append(out, "no keys of "+e.source.String()+", its tokens are refused: "+brief(e.state().GetProblem()))
		}
	}
	slices.Sort(out)
	return out, missing
}

// brief says what is the matter and what to do.
func brief(p configv1.JwksProblem) string {
	switch p {
	case configv1.JwksProblem_JWKS_PROBLEM_FORBIDDEN:
		return "its address is one that keys are not fetched from; name another, or let the mesh's operator allow it (--jwks-allow-addresses)"
	case configv1.JwksProblem_JWKS_PROBLEM_UNUSABLE:
		return "its answer has no public key that can be used; correct what the address serves"
	case configv1.JwksProblem_JWKS_PROBLEM_EXPIRED:
		return "they could not be fetched for seven days; make the address answer"
	case configv1.JwksProblem_JWKS_PROBLEM_LEFT_OUT:
		return "the namespace, or the mesh, names too many addresses; remove some, or let the mesh's operator raise --max-namespace-jwks"
	default:
		return "its address does not answer config-watcher as it should; make it reachable from the control plane"
	}
}

type collector struct {
	t                       *Table
	sources, fetches, stale *prometheus.Desc
}

// Collect registers the table's metrics.
func (t *Table) Collect(reg prometheus.Registerer) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("fairlead_config_watcher_jwks_"+name, help, labels, nil)
	}
	reg.MustRegister(&collector{
		t: t,
		sources: desc("sources", "Addresses and issuers whose keys RequestAuthentications name, by state: of stale ones the last good "+
			"keys count, of missing and left_out ones tokens are refused.", "state"),
		fetches: desc("fetches_total", "Attempts to fetch keys.", "result"),
		stale:   desc("oldest_seconds", "Age of the oldest keys that are in use."),
	})
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.sources
	ch <- c.fetches
	ch <- c.stale
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	counts, oldest, now := map[string]int{}, 0.0, c.t.cfg.Clock.Now()
	for _, e := range c.t.entries {
		counts[e.stateName()]++
		if e.admitted && e.keys != nil {
			oldest = max(oldest, now.Sub(e.fetched).Seconds())
		}
	}
	for _, state := range []string{StateFresh, StateStale, StateMissing, StateLeftOut, StatePending} {
		ch <- prometheus.MustNewConstMetric(c.sources, prometheus.GaugeValue, float64(counts[state]), state)
	}
	for _, r := range []result{resultOK, resultUnreachable, resultForbidden, resultUnusable} {
		ch <- prometheus.MustNewConstMetric(c.fetches, prometheus.CounterValue, float64(c.t.results[r]), string(r))
	}
	ch <- prometheus.MustNewConstMetric(c.stale, prometheus.GaugeValue, oldest)
}
