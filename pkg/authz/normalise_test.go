package authz_test

import (
	"testing"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/authz"
)

// TestNormalisePath has what Envoy 1.40 makes of paths.
func TestNormalisePath(t *testing.T) {
	const (
		none   = meshv1alpha1.MeshConfig_ProxyPathNormalization_NONE
		base   = meshv1alpha1.MeshConfig_ProxyPathNormalization_BASE
		merge  = meshv1alpha1.MeshConfig_ProxyPathNormalization_MERGE_SLASHES
		decode = meshv1alpha1.MeshConfig_ProxyPathNormalization_DECODE_AND_MERGE_SLASHES
	)
	for _, tc := range []struct {
		path string
		kind meshv1alpha1.MeshConfig_ProxyPathNormalization_NormalizationType
		want string
	}{
		{"/a/../%61//b?x=/../", none, "/a/../%61//b?x=/../"}, {"/a/../%61//b?x=/../", base, "/a//b?x=/../"},
		{"/a/../%61//b", merge, "/a/b"}, {"/a%2f..%5Cb", base, "/a%2f..%5Cb"}, {"/a%2f..%5Cb", decode, "/b"}, {`/a\..\b`, base, "/b"},
		{"/public/..;a=b/x", base, "/x"}, {"/public/..;", base, "/"}, {"/public/%2e%2e;/x", base, "/public/..;/x"}, {"/a/...;/x", base, "/a/...;/x"},
		{"///", merge, "//"}, {"///", base, "///"}, {"/é\"<>^`{|}[]", base, "/%C3%A9%22%3C%3E%5E%60%7B%7C%7D[]"}, {"/\xff", base, "/%FF"},
		{"/a%2%66b", base, "/a%252fb"}, {"/a%%32%66", base, "/a%252f"}, {"/a%%341", base, "/a%2541"}, {"/a%%%41%42", base, "/a%%25AB"},
		{"/a%zz%", base, "/a%zz%"}, {"*", base, "*"}, {"", base, ""},
	} {
		if got := authz.NormalisePath(tc.path, tc.kind); got != tc.want {
			t.Errorf("%s: %q is %q, want %q", tc.kind, tc.path, got, tc.want)
		}
	}
}
