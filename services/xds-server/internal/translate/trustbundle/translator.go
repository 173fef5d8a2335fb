// Package trustbundle builds what agents receive of MeshConfig's caCertificates: a ProxyConfig with the roots that are
// for any trust domain in caCertificatesPem, as Istio's control plane sends it, and all others in proxyMetadata (see
// contract.RootsMetadata). Envoy does not request it.
package trustbundle

import (
	"bytes"
	"encoding/json"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/plan"
)

// Name of the one resource that a class has. Agents ask for all, and look at no name.
const Name = "trustbundle"

// Translator builds the ProxyConfig of the mesh's roots, for classes that request it.
type Translator struct{}

// TypeURL implements plan.Translator.
func (Translator) TypeURL() string { return contract.ProxyConfigType }

// Traits of the type are the usual ones.
func (Translator) Traits() plan.Traits { return plan.Traits{} }

// Names lists the resource, also without any root: an empty one takes earlier roots back.
func (Translator) Names(*input.Reader) ([]string, error) { return []string{Name}, nil }

// HostNames is nil: services do not matter.
func (Translator) HostNames(*input.Reader, string) ([]string, error) { return nil, nil }

// Build implements plan.Translator.
func (Translator) Build(r *input.Reader, name string) (proto.Message, error) {
	if name != Name {
		return nil, nil
	}
	out := &meshv1alpha1.ProxyConfig{}
	mesh := r.Mesh()
	others := &meshv1alpha1.MeshConfig{TrustDomainAliases: mesh.GetTrustDomainAliases()}
	for _, c := range mesh.GetCaCertificates() {
		if c.GetSpiffeBundleUrl() == "" && len(c.GetTrustDomains()) == 0 {
			out.CaCertificatesPem = append(out.CaCertificatesPem, c.GetPem())
			continue
		}
		one := &meshv1alpha1.MeshConfig_CertificateData{CertificateData: c.GetCertificateData(), TrustDomains: c.GetTrustDomains()}
		others.CaCertificates = append(others.CaCertificates, one)
	}
	if len(others.GetCaCertificates()) > 0 {
		text, err := protojson.Marshal(others)
		if err != nil {
			return nil, err
		}
		// The spaces of protojson differ from build to build of the program.
		var compact bytes.Buffer
		if err := json.Compact(&compact, text); err != nil {
			return nil, err
		}
		out.ProxyMetadata = map[string]string{contract.RootsMetadata: compact.String()}
	}
	return resource{out}, nil
}

// resource gives the name to a ProxyConfig, which has no field for it.
type resource struct{ *meshv1alpha1.ProxyConfig }

// GetName returns the resource's name.
func (resource) GetName() string { return Name }
