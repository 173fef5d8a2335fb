package authz_test

import (
	"testing"

	"fairlead.dev/pkg/authz"
)

func TestRulesOfAPolicyAreMadeOnceForEachSettingOfTheMesh(t *testing.T) {
	p := policy(t, "p", `{action: ALLOW, rules: [{from: [{source: {principals: ["old/ns/a/sa/b"]}}]}]}`)
	p.Memo = &authz.Memo{}
	one := authz.Options{TrustDomain: "new"}
	other := authz.Options{TrustDomain: "new", Aliases: []string{"old"}}
	rule := func(o authz.Options) *authz.Rule { return authz.Compile([]authz.Policy{p}, o).Allow.Enforced.List[0] }
	first := rule(one)
	if rule(one) != first {
		t.Error("the rules of a policy are made again, with the same settings")
	}
	if rule(other) == first {
		t.Error("the rules of a policy are those of other settings")
	}
	unkept := p
	unkept.Memo = nil
	for _, o := range []authz.Options{one, other, one} {
		if !authz.Compile([]authz.Policy{p}, o).Equal(authz.Compile([]authz.Policy{unkept}, o)) {
			t.Errorf("with %+v the kept rules are others than those that are made anew", o)
		}
	}
}
