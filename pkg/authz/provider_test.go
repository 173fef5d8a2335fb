package authz_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	mesh "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/authz"
)

type (
	httpProvider = mesh.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationHttpProvider
	grpcProvider = mesh.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationGrpcProvider
)

func TestProvidersThatCannotBeAsked(t *testing.T) {
	overHTTP := func(name string, h *httpProvider) *mesh.MeshConfig_ExtensionProvider {
		return &mesh.MeshConfig_ExtensionProvider{Name: name, Provider: &mesh.MeshConfig_ExtensionProvider_EnvoyExtAuthzHttp{
			EnvoyExtAuthzHttp: h,
		}}
	}
	overGRPC := func(timeout time.Duration) *mesh.MeshConfig_ExtensionProvider {
		return &mesh.MeshConfig_ExtensionProvider{Name: "opa", Provider: &mesh.MeshConfig_ExtensionProvider_EnvoyExtAuthzGrpc{
			EnvoyExtAuthzGrpc: &grpcProvider{Timeout: durationpb.New(timeout)},
		}}
	}
	for name, tc := range map[string]struct {
		provider *mesh.MeshConfig_ExtensionProvider
		want     string
	}{
		"of HTTP": {overHTTP("opa-2", &httpProvider{
			HeadersToUpstreamOnAllow: []string{"x-*", "*-id", "x"}, Timeout: durationpb.New(0),
		}), ""},
		"of gRPC":           {overGRPC(time.Second), ""},
		"the longest name":  {overHTTP(strings.Repeat("a", 63), &httpProvider{}), ""},
		"a name too long":   {overHTTP(strings.Repeat("a", 64), &httpProvider{}), "name: "},
		"no name":           {overHTTP("", &httpProvider{}), "name: "},
		"an upper-case one": {overHTTP("Opa", &httpProvider{}), `name: "Opa"`},
		"an underscore":     {overHTTP("my_opa", &httpProvider{}), `name: "my_opa"`},
		"a hyphen last":     {overHTTP("opa-", &httpProvider{}), `name: "opa-"`},
		"of another kind":   {&mesh.MeshConfig_ExtensionProvider{Name: "opa"}, "decides about no access"},
		"any header to check": {overHTTP("opa", &httpProvider{IncludeRequestHeadersInCheck: []string{"x", "*"}}),
			`envoyExtAuthzHttp.includeRequestHeadersInCheck[1]: "*"`},
		"any header, by the old name": {overHTTP("opa", &httpProvider{
			IncludeHeadersInCheck: []string{"*"}, //nolint:staticcheck // deprecated, and still in use
		}), "envoyExtAuthzHttp.includeHeadersInCheck[0]"},
		"any header upstream":         {overHTTP("opa", &httpProvider{HeadersToUpstreamOnAllow: []string{"*"}}), "headersToUpstreamOnAllow[0]"},
		"any header when denied":      {overHTTP("opa", &httpProvider{HeadersToDownstreamOnDeny: []string{"*"}}), "headersToDownstreamOnDeny[0]"},
		"any header when allowed":     {overHTTP("opa", &httpProvider{HeadersToDownstreamOnAllow: []string{"*"}}), "headersToDownstreamOnAllow[0]"},
		"less than no time":           {overGRPC(-time.Second), "envoyExtAuthzGrpc.timeout: -1s"},
		"less than no time over HTTP": {overHTTP("opa", &httpProvider{Timeout: durationpb.New(-1)}), "envoyExtAuthzHttp.timeout"},
		"longer than Envoy waits":     {overGRPC((1 << 32) * time.Second), "envoyExtAuthzGrpc.timeout"},
		"longer than there is time": {overHTTP("opa", &httpProvider{Timeout: &durationpb.Duration{Seconds: 1 << 60}}),
			"envoyExtAuthzHttp.timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			err := authz.CheckProvider(tc.provider)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}
