package trustbundle

import (
	"encoding/pem"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/testkit"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

func entry(text string, domains ...string) *meshv1alpha1.MeshConfig_CertificateData {
	return &meshv1alpha1.MeshConfig_CertificateData{CertificateData: &meshv1alpha1.MeshConfig_CertificateData_Pem{Pem: text},
		TrustDomains: domains}
}

// Roots for single trust domains, and bundles at a URL, never stand where an agent takes them for any trust domain.
func TestOnlyRootsForAnyTrustDomainAreInCaCertificatesPem(t *testing.T) {
	atURL := &meshv1alpha1.MeshConfig_CertificateData{
		CertificateData: &meshv1alpha1.MeshConfig_CertificateData_SpiffeBundleUrl{SpiffeBundleUrl: "https://b"}}
	for name, tc := range map[string]struct {
		mesh  *meshv1alpha1.MeshConfig
		roots []string
		more  string
	}{
		"none": {&meshv1alpha1.MeshConfig{TrustDomainAliases: []string{"old"}}, nil, ""},
		"for any": {&meshv1alpha1.MeshConfig{CaCertificates: []*meshv1alpha1.MeshConfig_CertificateData{entry("a"), entry("b")}}, []string{"a", "b"},
			""},
		"mixed": {&meshv1alpha1.MeshConfig{
			TrustDomainAliases: []string{"old"},
			CaCertificates:     []*meshv1alpha1.MeshConfig_CertificateData{entry("a", "partner"), entry("b"), atURL},
		}, []string{
			"b"}, `{"trustDomainAliases":["old"],"caCertificates":[{"pem":"a","trustDomains":["partner"]},{"spiffeBundleUrl":"https://b"}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			state := meshtest.State(t, []*configv1.Resource{meshtest.Mesh(tc.mesh)}...)
			m, err := Translator{}.Build(input.NewView(&class.Key{}, state).Reader(), Name)
			if err != nil {
				t.Fatal(err)
			}
			got := m.(resource)
			if !slices.Equal(got.GetCaCertificatesPem(), tc.roots) || got.GetProxyMetadata()[contract.RootsMetadata] != tc.more {
				t.Errorf("got %v", got)
			}
			if size := proto.Size(&meshv1alpha1.ProxyConfig{CaCertificatesPem: tc.roots}); tc.more == "" && proto.Size(got.ProxyConfig) != size {
				t.Errorf("more than the roots: %v", got)
			}
		})
	}
}

// bundle is a signed bundle with roots of these contents.
func bundle(t *testing.T, generation uint64, roots ...string) *cav1.SignedBundle {
	t.Helper()
	b := &cav1.TrustBundle{Epoch: 3, Generation: generation}
	for _, r := range roots {
		b.RootCertificates = append(b.RootCertificates, []byte(r))
	}
	raw, err := proto.Marshal(b)
	testkit.NoError(t, err)
	return &cav1.SignedBundle{Bundle: raw}
}

// Istio's agent puts the entries together and compares bytes, as its UpdateConfigTrustBundle does, so that each
// generation makes it renew; it uses the certificates alone.
func TestTheMeshsOwnRootsFollowWithTheGeneration(t *testing.T) {
	build := func(signed *cav1.SignedBundle, more ...*meshv1alpha1.MeshConfig_CertificateData) *meshv1alpha1.ProxyConfig {
		state := meshtest.State(t, meshtest.Mesh(&meshv1alpha1.MeshConfig{CaCertificates: more})).WithSignedBundle(signed)
		m, err := Translator{}.Build(input.NewView(&class.Key{}, state).Reader(), Name)
		testkit.NoError(t, err)
		return m.(resource).ProxyConfig
	}
	other := testkit.CertPEM(testkit.PKI(t).Cert)
	got := build(bundle(t, 7, "one", "two"), entry(string(other)))
	if n := len(got.GetCaCertificatesPem()); n != 3 || got.GetCaCertificatesPem()[0] != string(other) ||
		got.GetProxyMetadata()[contract.OwnRootsMetadata] != "2" {
		t.Fatalf("got %v", got)
	}
	var blocks []string
	for rest := []byte(strings.Join(got.GetCaCertificatesPem(), "")); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		blocks = append(blocks, string(block.Bytes))
	}
	if len(blocks) != 3 || blocks[1] != "one" || blocks[2] != "two" {
		t.Errorf("certificates %q", blocks)
	}
	if proto.Equal(got, build(bundle(t, 8, "one", "two"), entry(string(other)))) {
		t.Error("another generation with the same roots changes nothing")
	}
	same := bundle(t, 7, "one", "two")
	same.Signature = []byte("anew")
	if !proto.Equal(got, build(same, entry(string(other)))) {
		t.Error("the same generation, signed anew, changes something")
	}
	if got := build(bundle(t, 9)); proto.Size(got) != 0 {
		t.Errorf("a bundle without roots: %v", got)
	}
	broken := meshtest.State(t).WithSignedBundle(&cav1.SignedBundle{Bundle: []byte{0xff}})
	if _, err := (Translator{}).Build(input.NewView(&class.Key{}, broken).Reader(), Name); err == nil {
		t.Error("a bundle that is none is built")
	}
}

// Before the bundle of the ca has come nothing is sent that would take earlier roots back.
func TestNothingIsSentBeforeThereIsARoot(t *testing.T) {
	for name, tc := range map[string]struct {
		roots  []*meshv1alpha1.MeshConfig_CertificateData
		signed *cav1.SignedBundle
		want   int
	}{
		"no bundle yet": {nil, nil, 0}, "roots of MeshConfig": {[]*meshv1alpha1.MeshConfig_CertificateData{entry("a")}, nil, 1},
		"a bundle": {nil, bundle(t, 1), 1},
	} {
		t.Run(name, func(t *testing.T) {
			state := meshtest.State(t, meshtest.Mesh(&meshv1alpha1.MeshConfig{CaCertificates: tc.roots})).WithSignedBundle(tc.signed)
			if names, err := (Translator{}).Names(input.NewView(&class.Key{}, state).Reader()); err != nil || len(names) != tc.want {
				t.Errorf("names %v, %v", names, err)
			}
		})
	}
}
