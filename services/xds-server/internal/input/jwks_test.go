package input_test

import (
	"testing"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

func TestKeysAreFoundByTheirSource(t *testing.T) {
	uri, issuer := contract.KeySourceOf("https://a/keys", "a"), contract.KeySourceOf("", "a")
	r := client(t, meshtest.Resource(mesh.KindJwks, "", uri.Name(), &configv1.Resource{Body: &configv1.Resource_Jwks{
		Jwks: &configv1.Jwks{Uri: uri.URI, Keys: []byte("keys")},
	}}))
	if got := r.Jwks(uri); string(got.GetKeys()) != "keys" {
		t.Errorf("keys of %s: %v", uri, got)
	}
	if got := r.Jwks(issuer); got != nil {
		t.Errorf("keys of %s: %v", issuer, got)
	}
	for _, source := range []contract.KeySource{uri, issuer} {
		if !r.Dependencies().Has(mesh.JwksTopic(source)) {
			t.Errorf("keys of %s are not among what was read", source)
		}
	}
}
