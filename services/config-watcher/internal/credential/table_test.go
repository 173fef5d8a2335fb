package credential

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"fairlead.dev/pkg/testkit"
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
	// woken reports whether a step has closed the channel of Changed.
	woken := func(changes ...normalise.Change) bool {
		t.Helper()
		before := table.Changed()
		for _, c := range table.Take(changes) {
			if c.Key.Kind != object.KindCredentialState {
				t.Errorf("passed on %v", c)
			}
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

	// Other kinds are passed on in order, and so are the state of a Secret and a custom resource named Secret.
	custom := normalise.Change{Key: object.Key{Group: "example.com", Kind: "Secret", Namespace: "shop", Name: "tls"}}
	in := []normalise.Change{change("Service", "a", nil), change("Secret", "tls", pair("one")), custom, change("Pod", "b", nil)}
	others := table.Take(in)
	if len(others) != 4 || others[0].Key.Kind != "Service" || others[1].Key.Kind != object.KindCredentialState || others[2] != custom ||
		others[3].Key.Kind != "Pod" {
		t.Errorf("passed on %v", others)
	}
}

// TestConfigMaps: CA certificates may be in a ConfigMap; a Secret of the same name wins, and the mesh configuration is
// not read.
func TestConfigMaps(t *testing.T) {
	ca := testkit.PKI(t)
	configMap := func(namespace, name, text string) normalise.Change {
		c := normalise.Change{Key: object.Key{Kind: "ConfigMap", Namespace: namespace, Name: name}}
		c.Object = &object.Object{Key: c.Key}
		if authority := object.AuthorityOf(&v1.ConfigMap{Data: map[string]string{"ca.crt": text}}); authority != nil {
			c.Object.Body = authority
		}
		return c
	}
	table := NewTable()
	roots := string(ca.RootPEM)
	if others := table.Take([]normalise.Change{configMap("shop", "partners", roots), configMap("shop", "junk", "junk"),
		configMap("shop", "key", roots+"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")}); len(others) != 3 {
		t.Errorf("passed on %v", others) // the Gateway API refers to ConfigMaps
	}
	if others := table.Take([]normalise.Change{configMap("istio-system", "istio", roots)}); len(others) != 1 {
		t.Error("the mesh's configuration is not passed on")
	}
	for name, want := range map[string]bool{"partners-cacert": true, "partners": false, "junk-cacert": false, "key-cacert": false,
		"other-cacert": false} {
		if got := table.Get(Ref{"shop", name}); (got != nil) != want {
			t.Errorf("%s: there is one: %v, want %v", name, got != nil, want)
		}
	}
	secret := &v1.Secret{Data: map[string][]byte{"cacert": []byte("of the Secret")}}
	table.Take([]normalise.Change{change("Secret", "partners", secret)})
	if got := string(table.Get(Ref{"shop", "partners-cacert"}).Proto().GetCaCertificates()); got != "of the Secret" {
		t.Errorf("got %q", got)
	}
}
