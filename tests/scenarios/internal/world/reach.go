package world

import (
	"crypto/x509"
	"slices"

	"fairlead.dev/tests/scenarios/internal/format"
)

// NameServer is the IP:port of the fleet's name server, Search the domains that a workload's machine looks in; the machine outside has none.
func (w *World) NameServer() string { return w.hubAddress(53) }

// Search has a workload's search domains.
func (w *World) Search(name string) []string {
	if l := w.workloads[name]; l != nil {
		return l.search()
	}
	return nil
}

// Roots are trusted by callers that name no authority: what issued the certificates of applications.
func (w *World) Roots() *x509.CertPool { return w.issuer.Pool() }

// Workloads are those of the topology, with their defaults.
func (w *World) Workloads() []*format.Workload {
	all := make([]*format.Workload, len(w.order))
	for i, l := range w.order {
		all[i] = l.spec
	}
	return slices.Clip(all)
}
