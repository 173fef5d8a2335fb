package meshconfig

import (
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	mesh "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/validate/check"
)

// providers checks the names of all extension providers, and those that decide about access.
func (c checker) providers(at string, list []*mesh.MeshConfig_ExtensionProvider) {
	names := map[string]bool{}
	for at, p := range manifest.Items(at, list) {
		c.FailIf(p.Name == "" || names[p.Name], at+".name", p.Name, "missing or used twice", "name every provider once")
		names[p.Name] = true
		switch v := p.Provider.(type) {
		case *mesh.MeshConfig_ExtensionProvider_EnvoyExtAuthzHttp:
			c.authorizer(at+".envoyExtAuthzHttp", v.EnvoyExtAuthzHttp)
			c.authorizerHTTP(at+".envoyExtAuthzHttp", v.EnvoyExtAuthzHttp)
		case *mesh.MeshConfig_ExtensionProvider_EnvoyExtAuthzGrpc:
			c.authorizer(at+".envoyExtAuthzGrpc", v.EnvoyExtAuthzGrpc)
		case nil:
			c.Fail(at, nil, "is no provider", "set one of its kinds, such as envoyExtAuthzGrpc")
		}
	}
}

// authorizer has what both kinds of external authorization have.
func (c checker) authorizer(at string, p interface {
	GetService() string
	GetPort() uint32
	GetStatusOnError() string
	GetIncludeRequestBodyInCheck() *mesh.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationRequestBody
}) {
	c.providerService(at+".service", p.GetService())
	check.Port(c.Verdict, at+".port", p.GetPort())
	c.statusOnError(at+".statusOnError", p.GetStatusOnError())
	if b := p.GetIncludeRequestBodyInCheck(); b != nil && b.MaxRequestBytes == 0 {
		c.Fail(at+".includeRequestBodyInCheck.maxRequestBytes", nil, "missing, and Envoy holds no body of 0 bytes", "set a bound in bytes")
	}
}

func (c checker) authorizerHTTP(at string, p *mesh.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationHttpProvider) {
	if p.PathPrefix != "" {
		_, err := url.Parse(p.PathPrefix)
		c.FailIf(err != nil || !strings.HasPrefix(p.PathPrefix, "/"), at+".pathPrefix", p.PathPrefix, "not a path", "begin it with a slash")
	}
	for _, f := range []struct {
		name string
		list []string
	}{
		{"includeHeadersInCheck", p.IncludeHeadersInCheck}, //nolint:staticcheck // deprecated, and still read
		{"includeRequestHeadersInCheck", p.IncludeRequestHeadersInCheck},
		{"headersToUpstreamOnAllow", p.HeadersToUpstreamOnAllow}, {"headersToDownstreamOnDeny", p.HeadersToDownstreamOnDeny},
		{"headersToDownstreamOnAllow", p.HeadersToDownstreamOnAllow},
	} {
		for i, s := range f.list {
			c.MatchText(manifest.Index(at+"."+f.name, i), s)
		}
	}
	const added = ".includeAdditionalHeadersInCheck"
	for _, name := range slices.Sorted(maps.Keys(p.IncludeAdditionalHeadersInCheck)) {
		c.FailIf(name == "", at+added, nil, "a header has no name", "name it")
		c.HeaderValue(manifest.Field(at+added, name), name)
		c.HeaderValue(manifest.Field(at+added, name), p.IncludeAdditionalHeadersInCheck[name])
	}
}

// providerService checks the name of a provider's service: a host, or namespace/host.
func (c checker) providerService(at, s string) {
	namespace, host, qualified := strings.Cut(s, "/")
	if !qualified {
		namespace, host = "", s
	}
	switch {
	case s == "":
		c.Fail(at, nil, "missing", "name the service's host")
	case strings.Contains(host, "*"):
		c.Fail(at, s, "a provider is one service: wildcards are not possible", "name its host in full")
	case qualified && !check.NameLabel(namespace):
		c.Fail(at, s, "not a namespace before the slash", `write "namespace/host", or the host alone`)
	case !check.FQDN(host) && (qualified || !check.IsIP(host)):
		c.Fail(at, s, "not a host", `write it like "opa.policies.svc.cluster.local"`)
	}
}

// statuses are those that Envoy can answer with: the names of its enum envoy.type.v3.StatusCode.
var statuses = []struct{ from, to int64 }{
	{100, 100}, {200, 208}, {226, 226}, {300, 305}, {307, 308}, {400, 417}, {421, 424}, {426, 426}, {428, 429}, {431, 431},
	{500, 508}, {510, 511},
}

func (c checker) statusOnError(at, s string) {
	if s == "" {
		return
	}
	code, err := strconv.ParseInt(s, 10, 32)
	known := err == nil && slices.ContainsFunc(statuses, func(r struct{ from, to int64 }) bool { return r.from <= code && code <= r.to })
	c.FailIf(!known, at, s, "no HTTP status that Envoy answers with", `use one such as "403" or "503"`)
}
