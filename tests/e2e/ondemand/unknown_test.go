package ondemand

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
)

// TestUnknownHosts calls what is no service: the policy decides, as it does for any sidecar, and goes on deciding while
// services appear, go, and come back under that name.
func TestUnknownHosts(t *testing.T) {
	f := newFixture(t, options{env: []string{"PROXY_CONFIG={onDemand: true}"}})
	defer f.check()
	outsider := request{address: outsideIP + ":80", authority: "outside.example"}
	// The outside host has the service's address: it answers what is passed through.
	service := request{address: laterVIP + ":80", authority: "later.apps"}
	echo := laterVIP + ":9090"

	t.Run("ALLOW_ANY passes through", func(t *testing.T) {
		f.eventually(t, outsider, from("outside"))
		f.eventually(t, request{address: outsideIP + ":80", authority: outsideIP}, from("outside"))
		f.eventually(t, request{address: outsideIP + ":8080", authority: "outside.example:8080"}, from("outside"))
		f.eventually(t, service, from("outside"))
		f.talk(t, outsideIP+":9090", "hello", "outside: hello")
		f.talk(t, outsideIP+":9091", "", greeting)
		f.talk(t, echo, "hello", "outside: hello")
	})
	t.Run("a host that nobody has", func(t *testing.T) {
		a, err := call(f.client.Host, request{address: outsideIP + ":81", authority: "nobody.example:81"})
		if err != nil || a.status != http.StatusServiceUnavailable {
			t.Errorf("status %d, %v", a.status, err)
		}
	})
	t.Run("a host that is none", func(t *testing.T) {
		for _, authority := range []string{"*", "*.apps", "a/b", strings.Repeat("a", 300)} {
			a, err := call(f.client.Host, request{address: serverVIP + ":80", authority: authority})
			if err != nil || a.status < http.StatusBadRequest {
				t.Errorf("%.20q: status %d, %v; want it refused", authority, a.status, err)
			}
		}
	})
	inAndOut := func(t *testing.T, away func(answer) error, wantTCP func(string, error) error) {
		t.Helper()
		tcp := func(want func(string, error) error) {
			t.Helper()
			testkit.Eventually(t, takesEffect, func() error { return want(f.client.Host.Say(echo, "hello")) })
		}
		for _, step := range []string{"appears", "is added again"} {
			f.WriteConfig(later, laterService())
			f.eventually(t, service, func(a answer) error { return errors.Join(from("v1", "v2")(a), calledBy(client)(a)) })
			tcp(said("v1: hello", "v2: hello"))
			f.RemoveConfig(later)
			f.eventually(t, service, away)
			tcp(wantTCP)
			t.Logf("the service %s and goes", step)
		}
	}
	t.Run("ALLOW_ANY: a service appears, goes, is added again", func(t *testing.T) { inAndOut(t, from("outside"), said("outside: hello")) })

	f.WriteConfig("policy.yaml", policy("REGISTRY_ONLY", ""))
	t.Run("REGISTRY_ONLY refuses", func(t *testing.T) {
		f.eventually(t, outsider, status(http.StatusBadGateway))
		f.eventually(t, request{address: outsideIP + ":80", authority: "another.example"}, status(http.StatusBadGateway))
		f.eventually(t, service, status(http.StatusBadGateway))
		for _, address := range []string{outsideIP + ":9090", outsideIP + ":9091", outsideIP + ":9999", echo} {
			testkit.Eventually(t, takesEffect, func() error { return closed(f.client.Host.Say(address, "")) })
		}
		f.ok(t, request{address: serverVIP + ":80", authority: "server"})
	})
	t.Run("REGISTRY_ONLY: a service appears, goes, is added again", func(t *testing.T) { inAndOut(t, status(http.StatusBadGateway), closed) })

	f.WriteConfig("policy.yaml", policy("ALLOW_ANY", ""))
	t.Run("ALLOW_ANY again", func(t *testing.T) {
		f.eventually(t, outsider, from("outside"))
		testkit.Eventually(t, takesEffect, func() error { return said("outside: hello")(f.client.Host.Say(outsideIP+":9090", "hello")) })
	})
}

// calledBy is the condition that the far proxy has verified the caller.
func calledBy(id string) func(answer) error {
	return func(a answer) error {
		if got := a.caller(); got != id {
			return fmt.Errorf("caller %q, want %q", got, id)
		}
		return nil
	}
}

// said is the condition on what a TCP connection was answered with.
func said(want ...string) func(string, error) error {
	return func(got string, err error) error {
		for _, w := range want {
			if err == nil && got == w {
				return nil
			}
		}
		return fmt.Errorf("answered with %q, %w; want one of %q", got, err, want)
	}
}

// closed is the condition that the proxy has closed a TCP connection.
func closed(got string, err error) error {
	if err == nil || isTimeout(err) {
		return fmt.Errorf("answered with %q, %w; want the connection closed", got, err)
	}
	return nil
}
