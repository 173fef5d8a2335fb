// Package trustbundle builds the ProxyConfig by which agents receive roots, as Istio's control plane sends it. Those of
// MeshConfig's caCertificates that are for any trust domain are in caCertificatesPem, and all others in proxyMetadata
// (see contract.RootsMetadata). The mesh's own roots follow in caCertificatesPem: Istio's agents trust them from then
// on, and renew their certificates whenever the list changes. Envoy does not request the type.
package trustbundle

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	cav1 "fairlead.dev/proto/fairlead/ca/v1"
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

// Names lists the resource, also without any root: an empty one takes earlier roots back. Before the ca has sent a
// bundle an empty one is not sent: Istio's agents would renew their certificates at each start of an xds-server.
func (Translator) Names(r *input.Reader) ([]string, error) {
	if r.SignedBundle() == nil && len(r.Mesh().GetCaCertificates()) == 0 {
		return nil, nil
	}
	return []string{Name}, nil
}

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
	own, err := ownRoots(r.SignedBundle())
	if err != nil {
		return nil, err
	}
	if len(own) > 0 {
		out.CaCertificatesPem = append(out.CaCertificatesPem, own...)
		if out.ProxyMetadata == nil {
			out.ProxyMetadata = map[string]string{}
		}
		out.ProxyMetadata[contract.OwnRootsMetadata] = strconv.Itoa(len(own))
	}
	return resource{out}, nil
}

// ownRoots are the roots of a bundle in PEM, each one an entry. The last one ends with a line that names the bundle's
// generation. Istio's agent compares the bytes of all entries, and renews its certificate when they differ; what stands
// behind the last certificate it compares, and does not use. So it also renews when the bundle names tainted
// authorities without any change of the roots.
func ownRoots(signed *cav1.SignedBundle) ([]string, error) {
	if signed == nil {
		return nil, nil
	}
	b := &cav1.TrustBundle{}
	if err := proto.Unmarshal(signed.GetBundle(), b); err != nil {
		return nil, fmt.Errorf("trust bundle of the ca: %w", err)
	}
	var out []string
	for _, der := range b.GetRootCertificates() {
		out = append(out, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	}
	if last := len(out) - 1; last >= 0 {
		out[last] += fmt.Sprintf("# trust bundle, generation %d of epoch %d\n", b.GetGeneration(), b.GetEpoch())
	}
	return out, nil
}

// resource gives the name to a ProxyConfig, which has no field for it.
type resource struct{ *meshv1alpha1.ProxyConfig }

// GetName returns the resource's name.
func (resource) GetName() string { return Name }
