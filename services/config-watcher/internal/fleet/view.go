package fleet

import (
	"slices"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// View is a connected proxy as the fleet sees it at one moment.
type View struct {
	// Status is shared with the table: the holder must not change it. Its Acked is the proxy's own statement; Acked
	// below counts.
	Status *configv1.ProxyStatus
	// Acked is the newest revision of which the proxy has acknowledged everything that concerns it.
	Acked *configv1.Revision
	// Serves is the revision that the proxy's xds-server serves.
	Serves *configv1.Revision
	// Reported is false while the report stream of the proxy's xds-server is lost.
	Reported bool
}

// Verified returns every proxy whose identity owns a known Workload, sorted by node ID and identity. incomplete is true
// while an xds-server that should report has not, as just after the start.
func (t *Table) Verified() (proxies []View, incomplete bool) {
	for _, p := range t.starting("") {
		if !p.status.GetUnverified() {
			proxies = append(proxies, View{p.status, p.acked, p.serves, p.reported})
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	incomplete, _ = t.incomplete(t.clock.Now())
	return proxies, incomplete
}

// Settled reports whether the proxy has answered everything that its xds-server has sent, and nothing more is to be
// sent. What it has rejected counts as answered.
func (v View) Settled() bool {
	for _, ts := range v.Status.GetTypes() {
		if ts.GetAwaiting() || ts.GetPending() > 0 {
			return false
		}
	}
	return v.Reported
}

// Registering is what is known of the proxies that want to be registered.
type Registering struct {
	// Proxies sorted by node ID and identity.
	Proxies []View
	// Reporters is the number of xds-servers that report.
	Reporters int
	// Unsettled is true while proxies may be missing: an xds-server that should report has not, or one was lost lately.
	Unsettled bool
}

// Registering returns the proxies that want to be registered.
func (t *Table) Registering() (r Registering) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.proxies() {
		if p.status.GetRegistration() != nil {
			r.Proxies = append(r.Proxies, View{p.status, p.acked, p.serves, p.reported})
		}
	}
	slices.SortFunc(r.Proxies, func(a, b View) int { return byKey(a.Status, b.Status) })
	r.Unsettled, _ = t.incomplete(t.clock.Now())
	for _, in := range t.instances {
		if in.stream == 0 {
			r.Unsettled = true
		} else {
			r.Reporters++
		}
	}
	return r
}
