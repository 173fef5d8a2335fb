package mesh

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/envoyapi"
)

// ProxyMatch is match.proxy of a patch: a condition on the metadata that a proxy states.
type ProxyMatch struct {
	// ID is equal for equal conditions.
	ID       string
	version  *regexp.Regexp // nil: any
	metadata map[string]string
}

// versionMetadata is the key of the node's metadata that has the version of the proxy's image.
const versionMetadata = "ISTIO_VERSION"

// Meets reports whether a proxy with these text entries in its metadata meets the condition.
func (p *ProxyMatch) Meets(metadata map[string]string) bool {
	if p.version != nil {
		if v, ok := metadata[versionMetadata]; !ok || !p.version.MatchString(v) {
			return false
		}
	}
	return Matches(p.metadata, metadata)
}

// nothing matches no text.
var nothing = regexp.MustCompile(`[^\x00-\x{10FFFF}]`)

func newProxyMatch(m *networking.EnvoyFilter_ProxyMatch) (*ProxyMatch, error) {
	if m.GetProxyVersion() == "" && len(m.GetMetadata()) == 0 {
		return nil, nil //nolint:nilnil // no condition
	}
	p := &ProxyMatch{metadata: m.GetMetadata()}
	switch v := m.GetProxyVersion(); {
	case v == "":
	case len(v) > envoyapi.MaxProxyVersion:
		p.version = nothing
	default:
		var err error
		if p.version, err = regexp.Compile(v); err != nil {
			return nil, fmt.Errorf("match.proxy.proxyVersion: %w", err)
		}
	}
	parts := []string{m.GetProxyVersion()}
	for _, k := range sortedKeys(p.metadata) {
		parts = append(parts, k, p.metadata[k])
	}
	sum := sha256.Sum256([]byte(join(parts...)))
	p.ID = hex.EncodeToString(sum[:8])
	return p, nil
}

// ProxyMatches calls f for the conditions on proxies that EnvoyFilters for the namespace have. f may be called several
// times for equal conditions.
func (s *Snapshot) ProxyMatches(namespace string, f func(*ProxyMatch)) {
	for _, to := range []string{"*", namespace} {
		for _, p := range s.proxyMatches.list(to + sep) {
			f(p)
		}
	}
}

// ProxyMatchesTopics names the answers of ProxyMatches.
func ProxyMatchesTopics(namespace string) []Topic {
	return []Topic{{SubjectProxyMatches, "*", ""}, {SubjectProxyMatches, namespace, ""}}
}
