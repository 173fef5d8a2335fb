package consul

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fetch"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/consultest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source/consul/registry"
)

// previewsOf reads by follow, and knows the registries of a rig.
func previewsOf(follow func(Connection) Follower, known *Registries) *Previews {
	return NewPreviews(PreviewConfig{Addresses: fetch.Addresses{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
		Domain: "cluster.local", System: "istio-system", Follow: follow, Registries: known, Clock: clock.Real()})
}

func noOwner(string) string { return "" }

// TestAPreviewTellsWhatARegistryBecomes: hosts, ports, accounts, and what the mesh has already; nothing is delivered.
func TestAPreviewTellsWhatARegistryBecomes(t *testing.T) {
	r := newRig(t)
	r.dc.set(put("web", instances("web", 3)))
	r.dc.set(put("db", instances("db", 1)))
	r.dc.set(put("batch", instances("batch", 1)))
	r.file("west.yaml", declare("domain: west"))
	r.run()
	r.rows("west SYNCED")
	before := r.mesh.text()
	text := declare("token: secret-token", "rules: [{services: [web, d*], namespace: shop, port: 80, protocol: http, account: web}]")
	taken := func(host string) string {
		return map[string]string{"db.service.consul": "ServiceEntry shop/db of source memory"}[host]
	}
	p, err := previewsOf(r.dc.follow, r.Registries).Make(t.Context(), "east", []byte(text), taken)
	testkit.NoError(t, err)
	if len(p.Services) != 2 || fmt.Sprint(p.Unmatched) != "[batch]" || len(p.Problems) != 1 {
		t.Fatalf("%+v", p)
	}
	web := p.Services[1]
	if web.Hosts[0] != "web.service.consul" || web.Account != "web" || web.Namespace != "shop" || web.Instances != 3 || web.Ready != 3 ||
		fmt.Sprint(web.Ports) != "[{service 80 HTTP}]" {
		t.Errorf("%+v", web)
	}
	if c := p.Problems[0]; c.Field != "host db.service.consul" ||
		!strings.HasPrefix(c.Reason, "ServiceEntry shop/db of source memory has this host") {
		t.Errorf("%+v", c)
	}
	if after := r.mesh.text(); after != before || len(r.Sources()) != 1 {
		t.Errorf("the mesh had %s and has %s, sources %d", before, after, len(r.Sources()))
	}
	// Another registry has the hosts.
	p, err = previewsOf(r.dc.follow, r.Registries).Make(t.Context(), "east", []byte(declare("domain: west")), noOwner)
	testkit.NoError(t, err)
	if c := p.Problems[0]; c.Field != "domain" || !strings.Contains(c.Reason, "the older registry west") || c.Remedy == "" {
		t.Errorf("%+v", c)
	}
	// The one that is previewed is none of the others.
	p, err = previewsOf(r.dc.follow, r.Registries).Make(t.Context(), "west", []byte(declare("domain: west")), noOwner)
	if err != nil || len(p.Problems) != 0 {
		t.Errorf("%v, %+v", err, p.Problems)
	}
}

// TestWhatAPreviewRefuses: nothing is connected to, and no credential is told.
func TestWhatAPreviewRefuses(t *testing.T) {
	dc := &datacenter{}
	for name, c := range map[string]struct{ text, want string }{
		"no YAML":           {"token: secret-token\n\t{", "is no declaration"},
		"an unknown field":  {declare("tokn: secret-token"), `unknown field "tokn"`},
		"a file":            {declare("tokenFile: /etc/passwd"), "tokenFile: names a file"},
		"metadata services": {strings.Replace(declare(), "127.0.0.1:8500", "169.254.169.254", 1), "address: "},
		"a token in plaintext": {strings.Replace(declare("token: secret-token"), "127.0.0.1", "10.0.0.1", 1),
			"the token would cross the network in the clear"},
		"nothing": {"", "address: "},
	} {
		_, err := previewsOf(dc.follow, nil).Make(t.Context(), "east", []byte(c.text), noOwner)
		var found object.Problems
		if !errors.As(err, &found) || !strings.Contains(err.Error(), c.want) || found[0].Remedy == "" {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if strings.Contains(fmt.Sprint(err), "secret-token") {
			t.Errorf("%s: the token is told: %v", name, err)
		}
	}
	if n := len(dc.connected()); n != 0 {
		t.Errorf("%d connections", n)
	}
}

// TestAPreviewIsBounded: in number at once, in time by its caller, and by what it reads; one of a registry that cannot
// be read says why.
func TestAPreviewIsBounded(t *testing.T) {
	dc := &datacenter{away: errAway}
	p := previewsOf(dc.follow, nil)
	if _, err := p.Make(t.Context(), "east", []byte(declare()), noOwner); !errors.Is(err, errAway) {
		t.Errorf("away: %v", err)
	}
	silent := &asked{}
	p = previewsOf(func(Connection) Follower { return silentFollower{silent} }, nil)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, previews)
	for range previews {
		go func() {
			_, err := p.Make(ctx, "east", []byte(declare()), noOwner)
			done <- err
		}()
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		if len(p.slots) < previews {
			return errors.New("not all have begun")
		}
		return nil
	})
	if _, err := p.Make(t.Context(), "east", []byte(declare()), noOwner); !errors.Is(err, ErrBusy) {
		t.Errorf("one too many: %v", err)
	}
	stop()
	for range previews {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("ended by its caller: %v", err)
		}
	}
	large := &datacenter{services: map[string][]registry.Instance{}}
	large.services["web"] = instances("web", 10)
	for i := range previewInstances / 10 {
		large.services[fmt.Sprint("s", i)] = large.services["web"]
	}
	_, err := previewsOf(large.follow, nil).Make(t.Context(), "east", []byte(declare()), noOwner)
	if err == nil || !strings.Contains(err.Error(), "match fewer of them by rules") {
		t.Errorf("too large: %v", err)
	}
}

// silentFollower is one that waits for an answer.
type silentFollower struct{ *asked }

// Status implements Follower.
func (silentFollower) Status() Following { return Following{} }

// TestRealPreview reads a real agent and ends.
func TestRealPreview(t *testing.T) {
	agent := consultest.Dev(t)
	agent.Register(t, consultest.Instance("n1", "web", "web-1", "passing"))
	agent.Register(t, consultest.Instance("n1", "other", "other-1", "passing"))
	text := "address: " + agent.URL + "\ndatacenter: dc1\nrules: [{services: [web], namespace: shop}]\n"
	p, err := previewsOf(Follow, nil).Make(t.Context(), "east", []byte(text), noOwner)
	if err != nil || len(p.Services) != 1 || p.Services[0].Ready != 1 || fmt.Sprint(p.Unmatched) != "[other]" || len(p.Problems) != 0 {
		t.Errorf("%v, %+v", err, p)
	}
	agent.Kill()
	if _, err = previewsOf(Follow, nil).Make(t.Context(), "east", []byte(text), noOwner); err == nil ||
		!strings.Contains(err.Error(), "refused") {
		t.Errorf("%v", err)
	}
}
