package serve_test

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/types/known/anypb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/testkit"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/plan/plantest"
	"fairlead.dev/services/xds-server/internal/translate/trustbundle"
)

const pcds = contract.ProxyConfigType

// startTrusting is start with the mesh's roots besides, of which the ca's bundle has none.
func startTrusting(t *testing.T, resources ...*configv1.Resource) *fixture {
	t.Helper()
	f := startWith(t, setup{log: testkit.Logger(t), translators: func(set *plantest.Set) []plan.Translator {
		return append(set.Translators(), trustbundle.Translator{})
	}}, resources)
	f.Engine.ApplySignedBundle(&cav1.SignedBundle{})
	return f
}

// trusting is a MeshConfig with these roots.
func trusting(roots ...string) *configv1.Resource {
	m := &meshv1alpha1.MeshConfig{}
	for _, text := range roots {
		m.CaCertificates = append(m.CaCertificates,
			&meshv1alpha1.MeshConfig_CertificateData{CertificateData: &meshv1alpha1.MeshConfig_CertificateData_Pem{Pem: text}})
	}
	return meshtest.Mesh(m)
}

func wantRoots(t *testing.T, got *anypb.Any, want ...string) {
	t.Helper()
	m := &meshv1alpha1.ProxyConfig{}
	if err := got.UnmarshalTo(m); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(m.GetCaCertificatesPem(), want) {
		t.Errorf("roots %q, want %q", m.GetCaCertificatesPem(), want)
	}
}

// An agent that requests ProxyConfigs is sent the mesh's roots, each change of them and the last one's removal; a proxy
// that has not asked is sent none. A rejection is seen.
func TestMeshRootsDelta(t *testing.T) {
	r := startTrusting(t, append(basicMesh(), trusting())...)
	c, other := r.delta("pod", "default"), r.delta("other", "default")
	c.connectAll()
	other.connectAll()
	c.subscribe(pcds)
	first := c.expect(pcds, "+"+trustbundle.Name)
	wantRoots(t, first.GetResources()[0].GetResource())
	c.ack(first)
	r.acked("pod")
	r.edit(trusting("a", "b"))
	second := c.expect(pcds, "+"+trustbundle.Name)
	wantRoots(t, second.GetResources()[0].GetResource(), "a", "b")
	c.nack(second, "no certificate")
	if got := r.rejected("pod", pcds); got == nil {
		t.Error("the rejection is not seen")
	}
	r.edit(trusting("a"))
	third := c.expect(pcds, "+"+trustbundle.Name)
	wantRoots(t, third.GetResources()[0].GetResource(), "a")
	c.ack(third)
	r.acked("pod")

	// A new stream of the same proxy goes on.
	c.cancel()
	again := r.delta("pod", "default")
	again.connectAll()
	again.subscribe(pcds)
	again.ack(again.expect(pcds, "+"+trustbundle.Name))
	r.edit(trusting())
	last := again.expect(pcds, "+"+trustbundle.Name)
	wantRoots(t, last.GetResources()[0].GetResource())
	again.ack(last)
	r.acked("pod")
	if st := typeStatus(r.status("other"), pcds); st != nil {
		t.Errorf("who has not asked: %v", st)
	}
}

// The same holds for Istio's agents, which request the type with an empty list of names.
func TestMeshRootsSotw(t *testing.T) {
	r := startTrusting(t, append(basicMesh(), trusting("a"))...)
	c := r.sotw("pod", "default")
	c.subscribe(pcds)
	first := c.next()
	c.ack(first)
	wantRoots(t, first.GetResources()[0], "a")
	r.acked("pod")
	r.edit(trusting())
	second := c.next()
	c.ack(second)
	if second.GetVersionInfo() == first.GetVersionInfo() {
		t.Error("the version has not changed")
	}
	wantRoots(t, second.GetResources()[0])
	r.edit(trusting("b"))
	third := c.next()
	wantRoots(t, third.GetResources()[0], "b")
	c.nack(third, "no certificate")
	r.rejected("pod", pcds)
}
