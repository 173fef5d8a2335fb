package mesh

import (
	"testing"
	"time"
)

// acrossWithin is how long it may take from no cluster to a request across a gateway.
const acrossWithin = 6 * time.Minute

// TestClustersOfTwoNetworks installs multi-primary on different networks by Istio's guide and files, and verifies it as
// Istio does; then bookinfo, whose services are in one of the clusters each.
func TestClustersOfTwoNetworks(t *testing.T) {
	p := both(t, false)
	s := &steps{began: began(t), last: began(t)}
	s.done(t, "two clusters with a link")
	p.multiPrimary(t, s)
	p.helloworld(t)
	s.done(t, "helloworld and curl are ready in both")
	p.verify(t)
	s.done(t, "both versions answer in both clusters")
	p.check(t)
	s.done(t, "clusters check finds nothing")
	p.bookinfo(t)
	s.done(t, "bookinfo answers, with productpage and details in one cluster, reviews and ratings in the other")
	t.Logf("%5.1f s  all", time.Since(s.began).Seconds())
	if took := time.Since(s.began); took > acrossWithin {
		t.Errorf("a request across a gateway took %s from nothing, want %s at most", took, acrossWithin)
	}
	p.twoNetworks(t)
}

// TestClustersOfOneNetwork installs multi-primary by Istio's guide and files, and verifies it as Istio does.
func TestClustersOfOneNetwork(t *testing.T) {
	p := both(t, true)
	s := &steps{began: time.Now(), last: time.Now()}
	p.multiPrimary(t, s)
	p.helloworld(t)
	s.done(t, "helloworld and curl are ready in both")
	p.verify(t)
	s.done(t, "both versions answer in both clusters")
	p.check(t)
	s.done(t, "clusters check finds nothing")
}

// multiPrimary installs a control plane in each cluster, with roots in common, and has each read the other; where they
// are two networks, also gateways between them.
func (p *pair) multiPrimary(t *testing.T, s *steps) {
	t.Helper()
	root := newAuthority(t)
	for _, m := range p.members() {
		m.meshNamespace(t, root)
	}
	p.install(t, primary, p.members()...)
	s.done(t, "a control plane in each")
	for _, m := range p.members() {
		m.apply(t, strictMesh)
	}
	if p.first.network != p.second.network {
		p.eastwest(t, p.members()...)
		for _, m := range p.members() {
			m.expose(t, "expose-services.yaml")
		}
		s.done(t, "an east-west gateway in each")
	}
	for _, m := range p.members() {
		p.read(t, m)
	}
	s.done(t, "each reads the other")
}
