package config

import (
	"fmt"
	"net/url"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/protobuf/encoding/protojson"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/proto/fairlead/contract"
)

// MaxAnchors bounds caCertificates, each of which may be an address that the agent asks.
const MaxAnchors = contract.MaxMeshRoots

// Anchor is an entry of MeshConfig's caCertificates: roots in PEM, or the URL of a SPIFFE bundle.
type Anchor struct {
	PEM string
	URL string
	// TrustDomains are those that the roots are for; none means all.
	TrustDomains []string
}

// MeshAnchors reads caCertificates, and the aliases of the trust domain, of a MeshConfig in JSON.
func MeshAnchors(text []byte) (anchors []Anchor, aliases []string, err error) {
	mesh := &meshv1alpha1.MeshConfig{}
	if err = (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, mesh); err == nil {
		anchors, err = anchorsOf(mesh)
	}
	if err != nil {
		return nil, nil, err
	}
	return anchors, mesh.GetTrustDomainAliases(), nil
}

// anchorsOf checks the entries of caCertificates.
func anchorsOf(mesh *meshv1alpha1.MeshConfig) ([]Anchor, error) {
	if n := len(mesh.GetCaCertificates()); n > MaxAnchors {
		return nil, fmt.Errorf("caCertificates has %d entries: at most %d are read", n, MaxAnchors)
	}
	for i, alias := range mesh.GetTrustDomainAliases() {
		if _, err := spiffeid.TrustDomainFromString(alias); err != nil {
			return nil, fmt.Errorf("trustDomainAliases[%d]: %w", i, err)
		}
	}
	var out []Anchor
	for i, c := range mesh.GetCaCertificates() {
		at := fmt.Sprintf("caCertificates[%d]", i)
		for j, td := range c.GetTrustDomains() {
			if _, err := spiffeid.TrustDomainFromString(td); err != nil {
				return nil, fmt.Errorf("%s.trustDomains[%d]: %w", at, j, err)
			}
		}
		a := Anchor{PEM: c.GetPem(), URL: c.GetSpiffeBundleUrl(), TrustDomains: c.GetTrustDomains()}
		switch {
		case a.URL != "":
			u, err := url.Parse(a.URL)
			if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil {
				return nil, fmt.Errorf("%s.spiffeBundleUrl: want a URL such as https://bundle.example.com/", at)
			}
		case a.PEM != "":
			if _, err := tlsconf.ParseAuthorities([]byte(a.PEM)); err != nil {
				return nil, fmt.Errorf("%s.pem: %w", at, err)
			}
		default:
			return nil, fmt.Errorf("%s: has neither pem nor spiffeBundleUrl: set one", at)
		}
		out = append(out, a)
	}
	return out, nil
}
