package mesh

import (
	"fmt"
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
	p.verified(t, s)
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
	p.verified(t, s)
}

// verified verifies an installation as Istio's guides do, and by `fairlead clusters check`.
func (p *pair) verified(t *testing.T, s *steps) {
	t.Helper()
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

// TestClustersWithARemote installs primary-remote by Istio's guide and files, on one network and on two, and verifies
// it as Istio does: the control plane of the first cluster serves the second, at the first's gateway. Pods of the
// second are injected by an injector there, or by that of the first, as Istio's guide has it.
func TestClustersWithARemote(t *testing.T) {
	for _, c := range []struct {
		name       string
		pods, path bool
	}{
		{"on one network with the primary's injector", true, true},
		{"on two networks with an injector of its own", false, false},
		{"on one network with an injector of its own", true, false},
		{"on two networks with the primary's injector", false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := both(t, c.pods)
			s := &steps{began: time.Now(), last: time.Now()}
			p.primaryRemote(t, s, c.path)
			p.verified(t, s)
		})
	}
}

// remote is what Istio's guides install in a cluster whose control plane is another's. Without their injectionPath the
// cluster has an injector of its own. That, and a gateway that is installed there later, have the cluster's id from
// here.
func remote(m *member, address string, path bool) string {
	out := fmt.Sprintf(`apiVersion: install.istio.io/v1alpha1
kind: IstioOperator
spec:
  profile: remote
  values:
    global:
      remotePilotAddress: %[3]s
      multiCluster: {clusterName: %[1]s}
      network: %[2]s
`, m.name, m.network, address)
	if path {
		out += fmt.Sprintf("    istiodRemote:\n      injectionPath: /inject/cluster/%s/net/%s\n", m.name, m.network)
	}
	return out
}

// primaryRemote installs a control plane in the first cluster, and what uses it in the second; with path, also the
// injector of the first.
func (p *pair) primaryRemote(t *testing.T, s *steps, path bool) {
	t.Helper()
	west, east := p.first, p.second
	west.meshNamespace(t, newAuthority(t))
	p.install(t, primary, west)
	p.eastwest(t, west)
	west.expose(t, "expose-istiod.yaml")
	west.apply(t, strictMesh)
	s.done(t, "a control plane in the first, behind a gateway")

	east.meshNamespace(t, nil)
	east.kubectl(t, "annotate", "namespace", istioSystem, "topology.istio.io/controlPlaneClusters="+west.name)
	roots := west.kubectl(t, "get", "configmap", "-n", istioSystem, "istio-ca-root-cert", "-o", `jsonpath={.data.root-cert\.pem}`)
	east.kubectl(t, "create", "configmap", "-n", istioSystem, "fairlead-remote-roots", "--from-file=root-cert.pem="+east.file(t, roots))
	p.fairlead(t, "remote-clusters", "trust", "--context", east.name, "--primary-context", west.name, "--yes")
	p.install(t, func(m *member) string { return remote(m, west.node, path) }, east)
	s.done(t, "the first trusts the second, which is prepared")
	p.read(t, west)
	s.done(t, "the first reads the second")
	if west.network != east.network {
		east.gateways = remoteSystem
		p.eastwest(t, east)
		west.expose(t, "expose-services.yaml")
		s.done(t, "the second has a gateway, too")
	}
}
