package credential

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	v1 "k8s.io/api/core/v1"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	secretv1 "fairlead.dev/proto/fairlead/secret/v1"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
)

func judgedKey(name string) resource.Key {
	return resource.Key{Kind: kindAPIGateway, Namespace: "shop", Name: name}
}

// listeners are those of a Gateway that workloads of namespace shop serve, with credentials.
func listeners(t *testing.T, app string, names ...string) *configv1.GatewayAPIConfig {
	t.Helper()
	tls := testkit.Must(resource.Any(&networking.ServerTLSSettings{CredentialNames: names}))(t)
	return &configv1.GatewayAPIConfig{Object: &configv1.GatewayAPIConfig_Listeners{Listeners: &configv1.GatewayListeners{
		Gateway: "shop/edge", Selections: []*configv1.WorkloadSelection{{Namespace: "shop", Labels: map[string]string{"app": app}}},
		Listeners: []*configv1.GatewayListener{{Name: "https", Port: 443, Tls: tls}}, BackendCredential: "kubernetes-gateway://shop/client",
	}}}
}

// TestJudgedListenersEntitle: the gateways that serve a listener get what it names, of other namespaces too, and nobody
// else gets it; when the listener is gone, the access ends at once and is told.
func TestJudgedListenersEntitle(t *testing.T) {
	const granted = "kubernetes-gateway://keys/wildcard"
	r := newFixture(t)
	r.shop()
	r.commit(map[resource.Key]proto.Message{judgedKey("edge"): listeners(t, "edge", granted)})
	for _, in := range []string{"keys", "shop"} {
		for _, name := range []string{"wildcard", "other", "client"} {
			c := change("Secret", name, pair(in+name))
			c.Key.Namespace, c.Object.Key.Namespace = in, in
			r.table.Take([]normalise.Change{c})
		}
	}
	reports := r.fleet.Report("xds-1")
	reports.Apply(report("edge", "router"), true)
	reports.Apply(report("batch", "router"), false)
	reports.Apply(report("web", "sidecar"), false)
	a := r.watch("xds-1")
	ask := func(account, namespace, name string) *secretv1.Subscription {
		t.Helper()
		s := &secretv1.Subscription{Namespace: namespace, Name: name, Identity: identityOf(account)}
		testkit.NoError(t, a.stream.Send(&secretv1.WatchRequest{Subscribe: []*secretv1.Subscription{s}}))
		return s
	}
	for _, c := range []struct {
		what, account, namespace, name string
		want                           bool
	}{
		{"another namespace's, by a listener", "edge", "keys", "wildcard", true},
		{"the certificate for backends", "edge", "shop", "client", true},
		{"its name in the own namespace", "edge", "shop", "wildcard", false},
		{"another one of that namespace", "edge", "keys", "other", false},
		{"a gateway that does not serve it", "batch", "keys", "wildcard", false},
		{"a sidecar", "web", "keys", "wildcard", false},
	} {
		s := ask(c.account, c.namespace, c.name)
		if !c.want && c.namespace == "shop" { // it waits for what would allow it
			r.clock.WaitFor(t, 1)
			r.clock.Advance(answerWithin)
		}
		if got := a.next(s); got != c.want {
			t.Errorf("%s: handed out: %v", c.what, got)
		}
	}
	if len(r.ended) > 0 {
		t.Errorf("an access has ended: %s", <-r.ended)
	}

	s := &secretv1.Subscription{Namespace: "keys", Name: "wildcard", Identity: identityOf("edge")}
	r.commit(map[resource.Key]proto.Message{judgedKey("edge"): listeners(t, "edge")}) // the grant is gone
	if a.next(s) {
		t.Error("handed out without a grant")
	}
	if got, want := <-r.ended, "keys/wildcard "+identityOf("edge"); got != want {
		t.Errorf("told that %s has ended, want %s", got, want)
	}
	r.commit(map[resource.Key]proto.Message{judgedKey("edge"): listeners(t, "edge", granted)})
	if !a.next(s) {
		t.Error("not handed out when the grant is back")
	}
	// A subscriber that has seen the listener go drops the subscription by itself: that is told as well.
	r.commit(nil, judgedKey("edge"))
	testkit.NoError(t, a.stream.Send(&secretv1.WatchRequest{Unsubscribe: []*secretv1.Subscription{s}}))
	for {
		if got := <-r.ended; got == "keys/wildcard "+identityOf("edge") {
			break
		}
	}
}

// TestStateOfSecrets: of a Secret the mesh learns whether it is there and usable, and until when; nothing of its
// content.
func TestStateOfSecrets(t *testing.T) {
	chain, key := testkit.PKI(t).NewServer("a.example")
	table := NewTable()
	for name, c := range map[string]struct {
		secret  *v1.Secret
		problem string
		expires bool
	}{
		"usable":        {&v1.Secret{Data: map[string][]byte{"tls.crt": chain, "tls.key": key}}, "", true},
		"no key":        {&v1.Secret{Data: map[string][]byte{"ca.crt": chain}}, "it has no certificate with its key", false},
		"no TLS":        {&v1.Secret{Data: map[string][]byte{"password": []byte("x")}}, "it has no certificate with its key", false},
		"they differ":   {pair("secret words"), "its certificate and key cannot be used", false},
		"for passwords": {&v1.Secret{Type: v1.SecretTypeBasicAuth}, "it has no certificate with its key", false},
	} {
		t.Run(name, func(t *testing.T) {
			others := table.Take([]normalise.Change{change("Secret", name, c.secret)})
			if len(others) != 1 || others[0].Key != (object.Key{Group: "fairlead.dev", Kind: "CredentialState", Namespace: "shop", Name: name}) {
				t.Fatalf("passed on %v", others)
			}
			state := others[0].Object.Body.(*object.CredentialState)
			if !strings.HasPrefix(state.Problem, c.problem) || c.problem == "" && state.Problem != "" || strings.Contains(state.Problem, "words") {
				t.Errorf("problem %q, want %q", state.Problem, c.problem)
			}
			if state.NotAfter.IsZero() == c.expires {
				t.Errorf("expires at %v", state.NotAfter)
			}
			if again := table.Take([]normalise.Change{change("Secret", name, c.secret)}); len(again) > 0 {
				t.Errorf("delivered again, passed on %v", again)
			}
			gone := table.Take([]normalise.Change{change("Secret", name, nil)})
			if len(gone) != 1 || gone[0].Object != nil {
				t.Errorf("removed, passed on %v", gone)
			}
		})
	}
}
