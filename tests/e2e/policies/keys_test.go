package policies

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/token"
	"fairlead.dev/tests/e2e/internal/hostmesh"
)

const (
	issuer      = "https://issuer.example.com"
	keyPort     = 8181
	keyRequests = 5_000
	rotations   = 4
)

// keyServer publishes what its issuer's keys are.
type keyServer struct{ set atomic.Pointer[[]byte] }

func (s *keyServer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "max-age=1")
	_, _ = w.Write(*s.set.Load())
}

// publish makes the keys of issuers one set.
func (s *keyServer) publish(t *testing.T, issuers ...token.Issuer) {
	t.Helper()
	type document struct {
		Keys []json.RawMessage `json:"keys"`
	}
	var all document
	for _, i := range issuers {
		raw, err := i.JWKS()
		testkit.NoError(t, err)
		var own document
		testkit.NoError(t, json.Unmarshal(raw, &own))
		all.Keys = append(all.Keys, own.Keys...)
	}
	raw, err := json.Marshal(all)
	testkit.NoError(t, err)
	s.set.Store(&raw)
}

// bearer is the header with a token that a key has signed.
func bearer(t *testing.T, i token.Issuer) string {
	t.Helper()
	text, err := i.Sign(map[string]any{"iss": issuer, "sub": "caller", "exp": time.Now().Add(time.Hour).Unix()})
	testkit.NoError(t, err)
	return "Authorization: Bearer " + text + "\r\n"
}

// TestNewKeysFailNoRequest lets an issuer change its keys several times, while requests with its tokens go on: it
// publishes a new key beside the old one, signs with it once proxies have it, and takes the old one back. No request
// fails, no connection ends, and no listener is drained.
func TestNewKeysFailNoRequest(t *testing.T) {
	hostmesh.Needs(t)
	m := hostmesh.Start(t, hostmesh.Options{
		XDSServers: 1, Config: map[string]string{"workload.yaml": workload}, Watcher: []string{"--jwks-min-interval", "1s"},
	})
	now := newKey(t, 0)
	keys := &keyServer{}
	keys.publish(t, now)
	go func() { _ = http.Serve(m.Hub.Listen(keyPort), keys) }() //nolint:gosec // a test's
	m.WriteConfig("policy.yaml", fmt.Sprintf(`apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: apps}
spec: {jwtRules: [{issuer: %q, jwksUri: "http://%s/keys"}]}
---
`, issuer, net.JoinHostPort(m.Hub.IP, fmt.Sprint(keyPort)))+rule("ALLOW", `{from: [{source: {requestPrincipals: ["`+issuer+`/caller"]}}]}`))
	proxy, caller := serverAndCaller(t, m)
	accepted := func(header string, status int) {
		t.Helper()
		testkit.Eventually(t, testkit.Patience, func() error { return connect(t, caller).getWith(header, "/", status) })
	}
	header := bearer(t, now)
	accepted(header, http.StatusOK)
	connect(t, caller).want(t, "/", http.StatusForbidden)
	before := proxy.Stats("listener_manager")

	// A request holds the lock of the token that it carries: none is under way with one that is taken back.
	var current sync.RWMutex
	var made, failed atomic.Int64
	var all sync.WaitGroup
	done := make(chan struct{})
	for range 8 {
		c := connect(t, caller)
		all.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				current.RLock()
				err := c.getWith(header, "/", http.StatusOK)
				current.RUnlock()
				made.Add(1)
				if err != nil {
					failed.Add(1)
					t.Log(err)
					return
				}
			}
		})
	}
	for i := range rotations {
		next := newKey(t, 1+i)
		keys.publish(t, now, next)
		accepted(bearer(t, next), http.StatusOK)
		current.Lock()
		old := header
		header = bearer(t, next)
		current.Unlock()
		keys.publish(t, next)
		accepted(old, http.StatusUnauthorized)
		now = next
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		if n := made.Load(); n < keyRequests && failed.Load() == 0 {
			return fmt.Errorf("%d requests", n)
		}
		return nil
	})
	close(done)
	all.Wait()
	if n := failed.Load(); n > 0 {
		t.Errorf("on %d of 8 connections one of %d requests failed", n, made.Load())
	}
	after := proxy.Stats("listener_manager")
	for _, name := range []string{"listener_manager.listener_modified", "listener_manager.listener_in_place_updated",
		"listener_manager.total_listeners_draining", "listener_manager.total_filter_chains_draining"} {
		if _, there := after[name]; !there || after[name] != before[name] {
			t.Errorf("%s: %d, was %d", name, after[name], before[name])
		}
	}
	t.Logf("%d requests while the keys changed %d times", made.Load(), 2*rotations)
}

func newKey(t *testing.T, number int) token.Issuer {
	t.Helper()
	i, err := token.NewIssuer(issuer)
	testkit.NoError(t, err)
	i.KeyID = fmt.Sprintf("key-%d", number)
	return i
}
