// Package clusterkeys says of further clusters, of Kubernetes or Nomad, with which keys they sign the tokens of
// workloads, and which identities of the mesh these may prove. A Cluster is a ConfigMap in the namespace of the ca
// (Parse, Data); the ca gives them to the other services as one document (Read, Write), by which package auth verifies.
package clusterkeys

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Label has the value "true" on the ConfigMaps of further clusters.
const Label = "fairlead.dev/remote-cluster"

// Keys of the ConfigMap of a cluster. Without TrustDomainKey the identities are in the mesh's own trust domain, without
// NamespacesKey in every namespace but those of the mesh's own services.
const (
	NameKey        = "cluster"
	IssuerKey      = "issuer"
	KeysKey        = "jwks.json"
	TrustDomainKey = "trustDomain"
	NamespacesKey  = "namespaces"
)

// Bounds of clusters.
const (
	MaxClusters   = 100
	MaxKeys       = 32
	maxNamespaces = 1000
	maxName       = 63
	maxIssuer     = 2 << 10
	maxAccount    = 253
	// MaxDocument bounds the document of all clusters: it must fit into one ConfigMap beside the keys of the own
	// cluster.
	MaxDocument = 768 << 10
)

// Cluster is a further cluster, of Kubernetes or of Nomad.
type Cluster struct {
	// Name is the cluster's id, as its proxies state it.
	Name string `json:"cluster"`
	// Issuer is the `iss` of its tokens. Several clusters may have the same one. "" if they have none, as Nomad's
	// without oidc_issuer.
	Issuer string `json:"issuer"`
	// Keys is a JSON Web Key Set (RFC 7517).
	Keys json.RawMessage `json:"jwks"`
	// TrustDomain of the identities, "" for the mesh's own.
	TrustDomain string `json:"trustDomain,omitempty"`
	// Namespaces are those that the identities may be in; nil for all but those of the mesh's own services.
	Namespaces []string `json:"namespaces,omitempty"`
	// Nomad are the rules of a cluster of Nomad, of which the first that matches counts; nil for one of Kubernetes.
	Nomad []NomadRule `json:"nomad,omitempty"`
}

var (
	nameForm      = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?$`)
	namespaceForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	accountForm   = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
)

// Check returns everything that is wrong with a cluster. It names fields as the ConfigMap does.
func (c *Cluster) Check() error {
	var errs []error
	add := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("field %s: %w", field, fmt.Errorf(format, args...)))
	}
	if !nameForm.MatchString(c.Name) || len(c.Name) > maxName {
		add(NameKey, "%.80q is no id of a cluster; use letters, digits, '-', '.' and '_', at most %d", c.Name, maxName)
	}
	switch {
	case c.Issuer == "" && !c.OfNomad():
		add(IssuerKey, "is empty; it is what /.well-known/openid-configuration of the cluster's API server says")
	case len(c.Issuer) > maxIssuer:
		add(IssuerKey, "is longer than %d bytes", maxIssuer)
	}
	if _, err := PublicKeys(c.Keys); err != nil {
		add(KeysKey, "%w", err)
	}
	if c.TrustDomain != "" {
		if td, err := spiffeid.TrustDomainFromString(c.TrustDomain); err != nil || td.Name() != c.TrustDomain {
			add(TrustDomainKey, "%.80q is no trust domain, such as cluster.local", c.TrustDomain)
		}
	}
	if c.Namespaces != nil && len(c.Namespaces) == 0 {
		add(NamespacesKey, "names no namespace; name some, or remove the field to allow all but those of the mesh's own services")
	}
	if len(c.Namespaces) > maxNamespaces {
		add(NamespacesKey, "has more than %d names", maxNamespaces)
	}
	for _, n := range c.Namespaces[:min(len(c.Namespaces), maxNamespaces)] {
		if !namespaceForm.MatchString(n) {
			add(NamespacesKey, "%.80q is no name of a namespace; patterns are not taken", n)
		}
	}
	for _, err := range c.checkNomad() {
		add(NomadKey, "%w", err)
	}
	return errors.Join(errs...)
}

// Allows reports whether the cluster's identities may be in a namespace, as far as the cluster's own rule says.
func (c *Cluster) Allows(namespace string) bool {
	return c.Namespaces == nil || slices.Contains(c.Namespaces, namespace)
}

// Parse reads a ConfigMap's data. Namespaces are separated by commas or white space.
func Parse(data map[string]string) (Cluster, error) {
	c := Cluster{Name: data[NameKey], Issuer: data[IssuerKey], Keys: json.RawMessage(data[KeysKey]), TrustDomain: data[TrustDomainKey]}
	if text, ok := data[NamespacesKey]; ok {
		c.Namespaces = strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' || r == '\n' || r == '\r' })
		if c.Namespaces == nil {
			c.Namespaces = []string{}
		}
	}
	var errs []error
	if text, ok := data[NomadKey]; ok {
		var err error
		if c.Nomad, err = ParseNomad(text); err != nil {
			errs = append(errs, fmt.Errorf("field %s: %w", NomadKey, err))
		}
	}
	for key := range data {
		if !slices.Contains([]string{NameKey, IssuerKey, KeysKey, TrustDomainKey, NamespacesKey, NomadKey}, key) {
			// A misspelt "namespaces" would allow all of them.
			errs = append(errs, fmt.Errorf("field %.80q is not known; remove it", key))
		}
	}
	if text, ok := data[TrustDomainKey]; ok && text == "" {
		errs = append(errs, fmt.Errorf("field %s: is empty; name one, or remove the field for the mesh's own", TrustDomainKey))
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return c, errors.Join(c.Check(), errors.Join(errs...))
}

// Data is the inverse of Parse.
func (c *Cluster) Data() map[string]string {
	data := map[string]string{NameKey: c.Name, IssuerKey: c.Issuer, KeysKey: string(c.Keys)}
	if c.TrustDomain != "" {
		data[TrustDomainKey] = c.TrustDomain
	}
	if c.Namespaces != nil {
		data[NamespacesKey] = strings.Join(c.Namespaces, ",")
	}
	if c.OfNomad() {
		data[NomadKey] = nomadText(c.Nomad)
		if c.Issuer == "" {
			delete(data, IssuerKey)
		}
	}
	return data
}

// document is what a service reads from a file.
type document struct {
	Clusters []Cluster `json:"clusters"`
}

// Write makes the document of clusters: {"clusters": [...]}.
func Write(clusters []Cluster) ([]byte, error) {
	if clusters == nil {
		clusters = []Cluster{}
	}
	return json.Marshal(document{clusters})
}

// Read is the inverse of Write. A document of which any cluster is wrong is refused as a whole.
func Read(raw []byte) ([]Cluster, error) {
	var doc document
	decoder := json.NewDecoder(strings.NewReader(string(raw)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&doc); err != nil || decoder.More() {
		return nil, fmt.Errorf(`not a JSON object {"clusters": [...]} of remote clusters: %w`, errors.Join(err))
	}
	if len(doc.Clusters) > MaxClusters {
		return nil, fmt.Errorf("has more than %d clusters", MaxClusters)
	}
	names := map[string]bool{}
	for i := range doc.Clusters {
		c := &doc.Clusters[i]
		if err := c.Check(); err != nil {
			return nil, fmt.Errorf("clusters[%d] (%.80q): %w", i, c.Name, err)
		}
		if names[c.Name] {
			return nil, fmt.Errorf("clusters[%d]: cluster %q is there twice", i, c.Name)
		}
		names[c.Name] = true
	}
	return doc.Clusters, nil
}
