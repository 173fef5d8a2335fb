package authz_test

import (
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/authz"
)

// FuzzPolicy compiles whatever a policy can be, and decides requests: what is ignored opens nothing, and no rule has an
// expression that is none.
func FuzzPolicy(f *testing.F) {
	for seed := range uint64(20) {
		for _, p := range randomPolicies(rand.New(rand.NewPCG(seed, 1))) {
			spec, err := protojson.Marshal(p.Spec)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(spec, seed)
		}
	}
	f.Add([]byte(`{"rules":[{"to":[{"operation":{"paths":["/{*}x","{**}/"]}}],`+
		`"when":[{"key":"request.headers[","values":["["]}]}]}`), uint64(0))
	f.Fuzz(func(t *testing.T, spec []byte, seed uint64) {
		p := authz.Policy{Namespace: "foo", Name: "p", Spec: &security.AuthorizationPolicy{}}
		if protojson.Unmarshal(spec, p.Spec) != nil {
			return
		}
		set := authz.Compile([]authz.Policy{p}, options)
		r := rand.New(rand.NewPCG(seed, 2))
		for range 4 {
			req := randomRequest(r)
			d := set.Decide(req)
			for _, finding := range set.Explain(req) {
				ignored := finding.Rule != nil && len(finding.Rule.Ignored) > 0
				if ignored && finding.Action == authz.Allow && finding.Matches {
					t.Errorf("%s allows: %v", finding.Rule.Name, say(d))
				}
			}
		}
	})
}
