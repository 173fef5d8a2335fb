package trustbundle

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

func pem(text string, domains ...string) *meshv1alpha1.MeshConfig_CertificateData {
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
		"for any": {&meshv1alpha1.MeshConfig{CaCertificates: []*meshv1alpha1.MeshConfig_CertificateData{pem("a"), pem("b")}}, []string{"a", "b"},
			""},
		"mixed": {&meshv1alpha1.MeshConfig{
			TrustDomainAliases: []string{"old"},
			CaCertificates:     []*meshv1alpha1.MeshConfig_CertificateData{pem("a", "partner"), pem("b"), atURL},
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
