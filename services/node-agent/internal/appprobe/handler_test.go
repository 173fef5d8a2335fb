package appprobe

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"testing"

	"fairlead.dev/services/node-agent/internal/probe"
)

// kubelet gets for every kind of probe what it would get of the application.
func TestProbesOfTheApplication(t *testing.T) {
	app := startApplication(t)
	agent := startAgent(t, annotation(app.cases()))
	for _, tc := range app.cases() {
		t.Run(tc.name, func(t *testing.T) {
			got := ask(t, agent, "/app-health/"+tc.name+"/livez")
			if got.status != tc.want || !strings.Contains(got.body, tc.body) {
				t.Errorf("%d %.300q, want %d %q", got.status, got.body, tc.want, tc.body)
			}
			if len(got.body) > probe.MaxBody {
				t.Errorf("body of %d bytes", len(got.body))
			}
		})
	}
}

// The application sees kubelet's request, from the address that redirection lets pass, on a connection of its own.
func TestTheApplicationSeesKubeletsRequest(t *testing.T) {
	app := startApplication(t)
	agent := startAgent(t, annotation(app.cases()))
	var got map[string]any
	if err := json.Unmarshal([]byte(ask(t, agent, "/app-health/seen/livez").body), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"method": "GET", "uri": "/seen?a=b%20c", "host": fmt.Sprintf("kubelet:%d", app.http), "agent": "kube-probe/1.36", "list": []any{"a", "b"},
		"accept": "*/*", "from": "127.0.0.6", "close": true, "proto": 1.0,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the application sees %v, want %v", got, want)
	}
}

// A hook may take longer than the port permits requests, and probes that hang do not keep those of other paths out.
func TestSlowHooks(t *testing.T) {
	app := startApplication(t)
	agent := startAgent(t, fmt.Sprintf(
		`{"/app-lifecycle/web/prestopz":{"httpGet":{"path":"/slow","port":%d}},"/app-health/web/livez":{"tcpSocket":{"port":%[1]d}}}`, app.http))
	answers := make(chan answer, 2*maxConcurrent)
	var wg sync.WaitGroup
	for range 2 * maxConcurrent {
		wg.Go(func() { answers <- ask(t, agent, "/app-lifecycle/web/prestopz") })
	}
	for range maxConcurrent { // those beyond the bound are answered at once
		if got := <-answers; got.status != 503 {
			t.Fatalf("%+v", got)
		}
	}
	if got := ask(t, agent, "/app-health/web/livez"); got.status != 200 {
		t.Errorf("another probe: %+v", got)
	}
	// The limit cuts off a request that has begun after them.
	resp, err := http.Get("http://" + agent + "/endless")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Error("the port has no limit")
	}
	_ = resp.Body.Close()
	for range maxConcurrent {
		app.released <- struct{}{}
	}
	wg.Wait()
	for range maxConcurrent {
		if got := <-answers; got.status != 200 {
			t.Errorf("%+v", got)
		}
	}
}

// An application that listens on localhost alone is reached there if asked for.
func TestDestination(t *testing.T) {
	v4, v6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("2001:db8::1")
	for _, tc := range []struct {
		addresses []netip.Addr
		localhost bool
		want      string
		v6        bool
	}{
		{[]netip.Addr{v4, v6}, false, "10.0.0.1", false},
		{[]netip.Addr{v6, v4}, false, "2001:db8::1", true},
		{[]netip.Addr{v6}, true, "localhost", true},
		{nil, false, "localhost", false},
	} {
		if got, six := Destination(tc.addresses, tc.localhost); got != tc.want || six != tc.v6 {
			t.Errorf("%v %t: %s %t", tc.addresses, tc.localhost, got, six)
		}
	}
}
