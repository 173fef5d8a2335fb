package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/e2e/internal/fleet"
)

const (
	takesEffect = testkit.Patience
	// grain is how early a timer of Envoy may fire: it goes by the time at which its event loop woke up.
	grain    = 20 * time.Millisecond
	clientID = "spiffe://cluster.local/ns/apps/sa/client"
)

// virtualService makes a VirtualService of host server whose http section is given, indented by two.
func virtualService(http string) string {
	return `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata:
  name: server
  namespace: apps
spec:
  hosts:
    - server
  http:
` + strings.Trim(http, "\n") + "\n"
}

// TestTraffic checks what VirtualServices, DestinationRules and PeerAuthentications do to requests. One mesh serves
// all; each case replaces the same file.
func TestTraffic(t *testing.T) {
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/echo.yaml", "testdata/gateway.yaml", "testdata/sotw.yaml"}})
	m.WaitReady(t)
	client := m.From(t, "client-0")

	// until waits for a condition on the answer to a request.
	until := func(t *testing.T, c *fleet.Client, r fleet.Request, ok func(fleet.Answer) error) fleet.Answer {
		t.Helper()
		var last fleet.Answer
		m.Eventually(t, takesEffect, func() error {
			a, err := c.Do(t.Context(), r)
			if err != nil {
				return err
			}
			last = a
			if err := ok(a); err != nil {
				return fmt.Errorf("%w; status %d, headers %v, body %s", err, a.Status, a.Header, a.Body)
			}
			return nil
		})
		return last
	}
	status := func(want int) func(fleet.Answer) error {
		return func(a fleet.Answer) error {
			if a.Status != want {
				return fmt.Errorf("status %d, want %d", a.Status, want)
			}
			return nil
		}
	}

	t.Run("plain names and identity", func(t *testing.T) {
		for _, host := range []string{"server", "server.apps", "server.apps.svc.cluster.local", "server:80"} {
			a := until(t, client, fleet.Request{URL: "http://" + host + "/path?q=1"}, status(200))
			if !strings.Contains(a.Seen.Headers.Get("X-Forwarded-Client-Cert"), "URI="+clientID) {
				t.Errorf("%s: the server's sidecar did not verify the client: %v", host, a.Seen.Headers)
			}
			if a.Seen.URI != "/path?q=1" {
				t.Errorf("%s: the server saw %q", host, a.Seen.URI)
			}
		}
	})

	t.Run("a server without a sidecar is reached in plaintext", func(t *testing.T) {
		a := until(t, client, fleet.Request{URL: "http://legacy/"}, status(200))
		if x := a.Seen.Headers.Get("X-Forwarded-Client-Cert"); x != "" {
			t.Errorf("it saw a client certificate: %s", x)
		}
	})

	t.Run("weights", func(t *testing.T) {
		m.WriteConfig(t, "route.yaml", virtualService(`
    - name: split
      route:
        - destination: {host: server, subset: v1}
          weight: 80
        - destination: {host: server, subset: v2}
          weight: 20
      headers:
        response: {set: {x-route: split}}
`))
		until(t, client, fleet.Request{URL: "http://server/"}, func(a fleet.Answer) error { return header(a, "X-Route", "split") })
		seen := map[string]int{}
		const n = 400
		for range n {
			a, err := client.Get(t.Context(), "http://server/")
			if err != nil {
				t.Fatal(err)
			}
			seen[a.Seen.Version]++
		}
		// Six standard deviations of a binomial distribution with p = 0.2 are 48.
		if v2 := seen["v2"]; v2 < n/5-48 || v2 > n/5+48 || seen["v1"]+v2 != n {
			t.Errorf("versions seen: %v, want v1 80 %%, v2 20 %%", seen)
		}
	})

	t.Run("state-of-the-world xDS", func(t *testing.T) {
		sotw := m.From(t, "sotw-0")
		for pod, delta := range map[string]bool{"client-0": true, "sotw-0": false} {
			dump, err := m.Pod(t, pod).Admin(t.Context(), "/config_dump")
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(dump), "DELTA_GRPC") != delta {
				t.Fatalf("%s speaks delta xDS: %t, want %t", pod, !delta, delta)
			}
		}
		for _, version := range []string{"v1", "v2"} {
			m.WriteConfig(t, "route.yaml", virtualService(`
    - route: [{destination: {host: server, subset: `+version+`}}]
`))
			// Ten in a row: round robin over both versions would not give them.
			inRow := 0
			m.Eventually(t, takesEffect, func() error {
				a, err := sotw.Get(t.Context(), "http://server/")
				if inRow++; err != nil || a.Seen.Version != version {
					inRow = 0
				}
				if inRow < 10 {
					return fmt.Errorf("%q answered, want %s: %w", a.Seen.Version, version, err)
				}
				return nil
			})
		}
	})

	t.Run("matches", func(t *testing.T) {
		m.WriteConfig(t, "route.yaml", virtualService(`
    - name: by-header
      match:
        - headers: {end-user: {exact: jason}}
          uri: {prefix: /api/}
      route:
        - destination: {host: server, subset: v2}
    - name: by-query
      match:
        - queryParams: {version: {regex: "v?2"}}
          method: {exact: POST}
      route:
        - destination: {host: server, subset: v2}
    - name: rest
      route:
        - destination: {host: server, subset: v1}
      headers:
        response: {set: {x-route: rest}}
`))
		until(t, client, fleet.Request{URL: "http://server/"}, func(a fleet.Answer) error { return header(a, "X-Route", "rest") })
		jason := http.Header{"End-User": {"jason"}}
		for _, c := range []struct {
			name string
			r    fleet.Request
			want string
		}{
			{"header and path", fleet.Request{URL: "http://server/api/x", Header: jason}, "v2"},
			{"header without path", fleet.Request{URL: "http://server/x", Header: jason}, "v1"},
			{"path without header", fleet.Request{URL: "http://server/api/x"}, "v1"},
			{"query and method", fleet.Request{Method: http.MethodPost, URL: "http://server/?version=v2", Body: "x"}, "v2"},
			{"query without method", fleet.Request{URL: "http://server/?version=v2"}, "v1"},
			{"regex matches whole value", fleet.Request{Method: http.MethodPost, URL: "http://server/?version=v22"}, "v1"},
		} {
			a, err := client.Do(t.Context(), c.r)
			if err != nil {
				t.Fatal(err)
			}
			if a.Seen.Version != c.want {
				t.Errorf("%s: %q answered (status %d), want %s", c.name, a.Seen.Version, a.Status, c.want)
			}
		}
	})

	t.Run("header operations", func(t *testing.T) {
		m.WriteConfig(t, "route.yaml", virtualService(`
    - headers:
        request:
          set: {x-set: new}
          add: {x-added: more}
          remove: [x-removed]
        response:
          set: {x-route: headers}
          remove: [x-internal]
      route:
        - destination: {host: server, subset: v1}
          headers:
            request: {set: {x-destination: one}}
`))
		a := until(t, client, fleet.Request{
			URL:    "http://server/?headers=x-internal:secret",
			Header: http.Header{"X-Set": {"old"}, "X-Added": {"some"}, "X-Removed": {"gone"}},
		}, func(a fleet.Answer) error { return header(a, "X-Route", "headers") })
		h := a.Seen.Headers
		if h.Get("X-Set") != "new" || strings.Join(h.Values("X-Added"), ",") != "some,more" || h.Get("X-Removed") != "" ||
			h.Get("X-Destination") != "one" {
			t.Errorf("the server saw %v", h)
		}
		if a.Header.Get("X-Internal") != "" {
			t.Error("a header of the response was not removed")
		}
	})

	t.Run("redirect, rewrite, direct response", func(t *testing.T) {
		m.WriteConfig(t, "route.yaml", virtualService(`
    - match: [{uri: {prefix: /old}}]
      redirect: {uri: /new, authority: other.example.com, redirectCode: 308}
    - match: [{uri: {prefix: /v1/}}]
      rewrite: {uri: /, authority: rewritten.example.com}
      route: [{destination: {host: server, subset: v1}}]
    - match: [{uri: {exact: /teapot}}]
      directResponse: {status: 418, body: {string: short and stout}}
    - route: [{destination: {host: server, subset: v1}}]
`))
		a := until(t, client, fleet.Request{URL: "http://server/old/page"}, status(308))
		if got := a.Header.Get("Location"); got != "http://other.example.com/new" {
			t.Errorf("redirected to %q", got)
		}
		a = until(t, client, fleet.Request{URL: "http://server/v1/page?q=1"}, status(200))
		if a.Seen.URI != "/page?q=1" || a.Seen.Host != "rewritten.example.com" {
			t.Errorf("the server saw %s of host %s", a.Seen.URI, a.Seen.Host)
		}
		a = until(t, client, fleet.Request{URL: "http://server/teapot"}, status(418))
		if string(a.Body) != "short and stout" {
			t.Errorf("body %q", a.Body)
		}
	})

	t.Run("timeout", func(t *testing.T) {
		m.WriteConfig(t, "route.yaml", virtualService(`
    - timeout: 300ms
      route: [{destination: {host: server, subset: v1}}]
`))
		testkit.Quick(t, 1400*time.Millisecond, func() time.Duration {
			a := until(t, client, fleet.Request{URL: "http://server/?delay=1500ms"}, status(504))
			if a.Took < 300*time.Millisecond-grain {
				t.Errorf("it took %s", a.Took)
			}
			return a.Took
		})
		until(t, client, fleet.Request{URL: "http://server/?delay=20ms"}, status(200))
	})

	t.Run("retries", func(t *testing.T) {
		m.WriteConfig(t, "route.yaml", virtualService(`
    - retries: {attempts: 2, perTryTimeout: 20s, retryOn: 5xx}
      route: [{destination: {host: server, subset: v1}}]
      headers:
        response: {set: {x-route: retries}}
`))
		until(t, client, fleet.Request{URL: "http://server/"}, func(a fleet.Answer) error { return header(a, "X-Route", "retries") })
		for _, c := range []struct {
			id, codes       string
			status, attempt int
		}{
			{"retry-enough", "500,500,200", 200, 3},
			{"retry-too-few", "500,500,500,200", 500, 3},
		} {
			a, err := client.Do(t.Context(), fleet.Request{URL: "http://server/?codes=" + c.codes, Header: http.Header{"X-Request-Id": {c.id}}})
			if err != nil {
				t.Fatal(err)
			}
			if a.Status != c.status || a.Seen.Attempt != c.attempt {
				t.Errorf("%s: status %d at attempt %d, want %d at %d", c.codes, a.Status, a.Seen.Attempt, c.status, c.attempt)
			}
		}
	})

	t.Run("faults", func(t *testing.T) {
		m.WriteConfig(t, "route.yaml", virtualService(`
    - match: [{headers: {x-fault: {exact: abort}}}]
      fault: {abort: {httpStatus: 451, percentage: {value: 100}}}
      route: [{destination: {host: server, subset: v1}}]
    - match: [{headers: {x-fault: {exact: delay}}}]
      fault: {delay: {fixedDelay: 400ms, percentage: {value: 100}}}
      route: [{destination: {host: server, subset: v1}}]
    - route: [{destination: {host: server, subset: v1}}]
`))
		until(t, client, fleet.Request{URL: "http://server/", Header: http.Header{"X-Fault": {"abort"}}}, status(451))
		a := until(t, client, fleet.Request{URL: "http://server/", Header: http.Header{"X-Fault": {"delay"}}}, status(200))
		if a.Took < 400*time.Millisecond-grain {
			t.Errorf("delayed by %s only", a.Took)
		}
		until(t, client, fleet.Request{URL: "http://server/"}, status(200))
	})

	t.Run("gateway", func(t *testing.T) {
		m.WriteConfig(t, "ingress.yaml", `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata:
  name: ingress
  namespace: apps
spec:
  hosts: [shop.example.com]
  gateways: [ingress]
  http:
    - match: [{uri: {prefix: /shop/}}]
      rewrite: {uri: /}
      route: [{destination: {host: server, subset: v2}}]
`)
		shop := http.Header{"Host": {"shop.example.com"}}
		a := until(t, fleet.Direct(), fleet.Request{URL: m.URL(t) + "/shop/book", Header: shop}, status(200))
		if a.Seen.Version != "v2" || a.Seen.URI != "/book" {
			t.Errorf("%s answered %s", a.Seen.Version, a.Seen.URI)
		}
		if xfcc := a.Seen.Headers.Get("X-Forwarded-Client-Cert"); !strings.Contains(xfcc,
			"URI=spiffe://cluster.local/ns/istio-system/sa/ingress") {
			t.Errorf("the server's sidecar did not verify the gateway: %q", xfcc)
		}
		forged := http.Header{"Host": {"shop.example.com"}, "X-Forwarded-Client-Cert": {"URI=spiffe://cluster.local/ns/apps/sa/forged"}}
		a = until(t, fleet.Direct(), fleet.Request{URL: m.URL(t) + "/shop/", Header: forged}, status(200))
		if strings.Contains(a.Seen.Headers.Get("X-Forwarded-Client-Cert"), "forged") {
			t.Error("the gateway passed on an identity that its client made up")
		}
		until(t, fleet.Direct(), fleet.Request{URL: m.URL(t) + "/other", Header: shop}, status(404))
		until(t, fleet.Direct(), fleet.Request{URL: m.URL(t) + "/shop/", Header: http.Header{"Host": {"other.example.org"}}}, status(404))
	})

	t.Run("strict and permissive mutual TLS", func(t *testing.T) {
		direct := fleet.Request{URL: "http://" + m.Pod(t, "server-v1-0").IP + ":8080/"}
		mode := func(mode string) {
			m.WriteConfig(t, "mtls.yaml", `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata:
  name: default
  namespace: apps
spec:
  mtls:
    mode: `+mode+"\n")
		}
		until(t, fleet.Direct(), direct, status(200)) // PERMISSIVE without a policy
		mode("STRICT")
		m.Eventually(t, takesEffect, func() error {
			if a, err := fleet.Direct().Do(t.Context(), direct); err == nil {
				return fmt.Errorf("a plaintext request got status %d", a.Status)
			}
			return nil
		})
		until(t, client, fleet.Request{URL: "http://server/"}, status(200))
		mode("PERMISSIVE")
		a := until(t, fleet.Direct(), direct, status(200))
		if x := a.Seen.Headers.Get("X-Forwarded-Client-Cert"); x != "" {
			t.Errorf("a plaintext request carries an identity: %s", x)
		}
	})
	m.AssertNothingRejected(t)
}

// header is the condition that an answer has a header.
func header(a fleet.Answer, name, want string) error {
	if got := a.Header.Get(name); got != want {
		return fmt.Errorf("header %s is %q, want %q", name, got, want)
	}
	return nil
}
