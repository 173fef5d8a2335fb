package authz

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	mesh "istio.io/api/mesh/v1alpha1"
)

// longestName bounds the name of a provider, in bytes.
const longestName = 63

// longestTimeout is the first timeout of a provider that Envoy does not take.
const longestTimeout = (1 << 32) * time.Second

// CheckProvider says why a provider of MeshConfig cannot be asked about access; nil if it can. What a CUSTOM policy
// would ask such a provider is denied, as with Istio. Whether the provider's service exists is not looked at.
func CheckProvider(p *mesh.MeshConfig_ExtensionProvider) error {
	if err := checkProviderName(p.GetName()); err != nil {
		return err
	}
	if g := p.GetEnvoyExtAuthzGrpc(); g != nil {
		return checkTimeout("envoyExtAuthzGrpc", g.GetTimeout())
	}
	h := p.GetEnvoyExtAuthzHttp()
	if h == nil {
		return errors.New("the provider decides about no access: name one of kind envoyExtAuthzHttp or envoyExtAuthzGrpc")
	}
	for _, f := range []struct {
		field string
		names []string
	}{
		{"includeRequestHeadersInCheck", h.GetIncludeRequestHeadersInCheck()},
		{"includeHeadersInCheck", h.GetIncludeHeadersInCheck()}, //nolint:staticcheck // deprecated, and still in use
		{"headersToUpstreamOnAllow", h.GetHeadersToUpstreamOnAllow()},
		{"headersToDownstreamOnDeny", h.GetHeadersToDownstreamOnDeny()},
		{"headersToDownstreamOnAllow", h.GetHeadersToDownstreamOnAllow()},
	} {
		for i, name := range f.names {
			if name == "*" {
				return fmt.Errorf("envoyExtAuthzHttp.%s[%d]: %q names no header: write a name, or the beginning or end of one beside the \"*\"",
					f.field, i, name)
			}
		}
	}
	return checkTimeout("envoyExtAuthzHttp", h.GetTimeout())
}

// checkProviderName has Istio's rule: names are in those of policies, metadata and metrics.
func checkProviderName(name string) error {
	valid := name != "" && len(name) <= longestName && name[0] != '-' && name[len(name)-1] != '-'
	for _, c := range name {
		valid = valid && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-')
	}
	if !valid {
		return fmt.Errorf("name: %q is not of lower-case letters, digits and hyphens inside, at most %d: give the provider such a name",
			name, longestName)
	}
	return nil
}

func checkTimeout(kind string, d *durationpb.Duration) error {
	if d == nil {
		return nil
	}
	if d.CheckValid() != nil || d.AsDuration() < 0 || d.AsDuration() >= longestTimeout {
		return fmt.Errorf("%s.timeout: %ds is not a time to wait: use 0s or more, or leave it out for 600s", kind, d.GetSeconds())
	}
	return nil
}
