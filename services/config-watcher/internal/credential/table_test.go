package credential

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

func change(kind, name string, s *v1.Secret) normalise.Change {
	c := normalise.Change{Key: object.Key{Kind: kind, Namespace: "shop", Name: name}}
	if s != nil {
		c.Object = &object.Object{Key: c.Key}
		if credential := object.CredentialOf(s); credential != nil {
			c.Object.Body = credential
		}
	}
	return c
}

func pair(key string) *v1.Secret {
	return &v1.Secret{Type: v1.SecretTypeTLS, Data: map[string][]byte{"tls.crt": []byte("chain"), "tls.key": []byte(key)}}
}

func TestTable(t *testing.T) {
	table := NewTable()
	// woken reports whether a step has woken those who wait.
	woken := func(changes ...normalise.Change) bool {
		t.Helper()
		before := table.Changed()
		if others := table.Take(changes); len(others) > 0 {
			t.Errorf("passed on %v", others)
		}
		select {
		case <-before:
			return true
		default:
			return false
		}
	}
	tls := Ref{"shop", "tls"}
	for _, step := range []struct {
		name    string
		change  normalise.Change
		wakes   bool
		version bool // whether there is a credential then
	}{
		{"of another use", change("Secret", "password", &v1.Secret{Data: map[string][]byte{"password": []byte("x")}}), false, false},
		{"added", change("Secret", "tls", pair("one")), true, true},
		{"delivered again", change("Secret", "tls", pair("one")), false, true},
		{"replaced", change("Secret", "tls", pair("two")), true, true},
		{"of no use any more", change("Secret", "tls", &v1.Secret{Data: map[string][]byte{"password": []byte("x")}}), true, false},
		{"still of no use", change("Secret", "tls", &v1.Secret{}), false, false},
		{"back", change("Secret", "tls", pair("two")), true, true},
		{"removed", change("Secret", "tls", nil), true, false},
		{"removed again", change("Secret", "tls", nil), false, false},
	} {
		if got := woken(step.change); got != step.wakes {
			t.Errorf("%s: wakes %v, want %v", step.name, got, step.wakes)
		}
		if got := table.Get(tls); (got != nil) != step.version {
			t.Errorf("%s: there is a credential: %v", step.name, got != nil)
		}
	}
	if n := len(table.Summaries()); n != 0 {
		t.Errorf("%d left", n)
	}

	// What is no Secret goes on, in order; a custom resource of the same name is none.
	custom := normalise.Change{Key: object.Key{Group: "example.com", Kind: "Secret", Namespace: "shop", Name: "tls"}}
	in := []normalise.Change{change("Service", "a", nil), change("Secret", "tls", pair("one")), custom, change("Pod", "b", nil)}
	others := table.Take(in)
	if len(others) != 3 || others[0].Key.Kind != "Service" || others[1] != custom || others[2].Key.Kind != "Pod" {
		t.Errorf("passed on %v", others)
	}
}
