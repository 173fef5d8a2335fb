package contract_test

import (
	"testing"

	"fairlead.dev/proto/fairlead/contract"
)

func TestKeySourcesHaveNamesOfTheirOwn(t *testing.T) {
	seen := map[string]contract.KeySource{}
	for _, s := range []contract.KeySource{
		contract.KeySourceOf("", "https://a.example.com"), contract.KeySourceOf("https://a.example.com", "https://a.example.com"),
		contract.KeySourceOf("https://a.example.com/.well-known/openid-configuration", ""), contract.KeySourceOf("", "https://a.example.com/"),
		contract.KeySourceOf("", ""),
	} {
		if other, has := seen[s.Name()]; has || len(s.Name()) != 32 {
			t.Errorf("%q and %q are both %q", s, other, s.Name())
		}
		seen[s.Name()] = s
	}
	// Others have written it into state directories and hold resources by it.
	if got := contract.KeySourceOf("https://a.example.com/keys", "ignored").Name(); got != "58564a88e5e4226edcd67df0c3ec4715" {
		t.Errorf("the name is %q", got)
	}
}

func TestPasswordsOfKeySourcesAreNotTold(t *testing.T) {
	for uri, want := range map[string]string{
		"https://a.example.com/keys":         "jwksUri https://a.example.com/keys",
		"https://user:secret@a.example.com/": "jwksUri https://user:xxxxx@a.example.com/",
		"https://a.example.com/%":            "jwksUri https://a.example.com/%",
	} {
		if got := contract.KeySourceOf(uri, "").String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
