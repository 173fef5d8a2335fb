package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"fairlead.dev/tests/e2e/internal/fleet"
)

// chain is what productpage tells of the hops of one request.
type chain struct {
	Hops []struct {
		Service string `json:"service"`
		Version string `json:"version"`
		Caller  string `json:"caller"`
	} `json:"hops"`
}

// TestBookinfo runs the sample as the README's commands do: through the gateway, with STRICT mutual TLS between all
// services.
func TestBookinfo(t *testing.T) {
	const samples = "../../samples/bookinfo/"
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{samples + "mesh.yaml"}})
	m.WaitReady(t)

	get := func() (chain, error) {
		var c chain
		a, err := fleet.Direct().Get(t.Context(), m.URL(t)+"/api/v1/products/0/chain")
		if err == nil && a.Status != 200 {
			err = fmt.Errorf("status %d: %s", a.Status, a.Body)
		}
		if err != nil {
			return c, err
		}
		return c, json.Unmarshal(a.Body, &c)
	}
	m.Eventually(t, takesEffect, func() error { _, err := get(); return err })

	const account = "spiffe://cluster.local/ns/default/sa/bookinfo-"
	callers := map[string]string{
		"productpage": "spiffe://cluster.local/ns/istio-system/sa/istio-ingressgateway",
		"details":     account + "productpage",
		"reviews":     account + "productpage",
		"ratings":     account + "reviews",
	}
	split := map[string]int{}
	const n = 200
	for range n {
		c, err := get()
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range c.Hops {
			if h.Caller != callers[h.Service] {
				t.Fatalf("%s saw caller %q, want %q", h.Service, h.Caller, callers[h.Service])
			}
			if h.Service == "reviews" {
				split[h.Version]++
			}
		}
	}
	// Six standard deviations at 200 requests: 42 of 100, 39 of 60, 34 of 40.
	for version, want := range map[string][2]int{"v1": {58, 142}, "v2": {21, 99}, "v3": {6, 74}} {
		if got := split[version]; got < want[0] || got > want[1] {
			t.Errorf("reviews %s answered %d of %d, want %d to %d", version, got, n, want[0], want[1])
		}
	}

	page, err := fleet.Direct().Get(t.Context(), m.URL(t)+"/productpage")
	if err != nil {
		t.Fatal(err)
	}
	if body := string(page.Body); page.Status != 200 || !strings.Contains(body, "The Comedy of Errors") ||
		strings.Contains(body, "unavailable") {
		t.Errorf("page: status %d: %s", page.Status, body)
	}

	t.Run("shift", func(t *testing.T) {
		if code, out, errOut := m.CLI(t, "config", "apply", "-f", samples+"reviews-v3.yaml"); code != 0 {
			t.Fatalf("exit code %d: %s%s", code, out, errOut)
		}
		inRow := 0
		m.Eventually(t, takesEffect, func() error {
			c, err := get()
			if err != nil {
				t.Errorf("a request failed during the shift: %v", err)
			}
			inRow++
			for _, h := range c.Hops {
				if h.Service == "reviews" && h.Version != "v3" {
					inRow = 0
				}
			}
			if inRow < 20 {
				return errors.New("not everybody is sent to v3")
			}
			return nil
		})
	})

	t.Run("broken", func(t *testing.T) {
		code, out, errOut := m.CLI(t, "config", "apply", "-f", samples+"broken.yaml")
		if code != 3 {
			t.Errorf("exit code %d, want 3: %s%s", code, out, errOut)
		}
		for _, want := range []string{"broken.yaml", "VirtualService", "reviews", "weight", "-10"} {
			if !strings.Contains(errOut, want) {
				t.Errorf("the error lacks %q:\n%s", want, errOut)
			}
		}
		c, err := get()
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range c.Hops {
			if h.Service == "reviews" && h.Version != "v3" {
				t.Errorf("after a refused change %s answered", h.Version)
			}
		}
	})
}
