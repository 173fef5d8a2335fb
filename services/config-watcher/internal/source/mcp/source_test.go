package mcp

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"
	mcpv1alpha1 "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/testkit"
)

// TestTheUnionOfVersions: a version that the server does not know, and answers with an empty list, removes nothing,
// whatever the order of the answers.
func TestTheUnionOfVersions(t *testing.T) {
	for _, order := range [][]string{{entriesV1, entriesBeta, entriesAlpha}, {entriesAlpha, entriesBeta, entriesV1}} {
		p := newPeer(t)
		c := follow(t, p.address, "")
		s := p.next()
		if got := s.first.GetNode().GetMetadata().GetFields()["GENERATOR"].GetStringValue(); got != "api" {
			t.Errorf("the node's generator is %q", got)
		}
		for _, url := range order {
			if url == entriesBeta {
				s.tell(url, serviceEntry("a/one"), serviceEntry("a/two"))
			} else {
				s.tell(url)
			}
		}
		c.has("a/one:80 a/two:80")
		if c.HasSynced() {
			t.Error("synced before every kind was answered")
		}
		s.rest(order...)
		testkit.Eventually(t, testkit.Patience, func() error { return synced(c) })
		s.tell(entriesBeta, serviceEntry("a/two"))
		c.has("a/two:80")
		s.tell(entriesV1, serviceEntry("a/three", port(81)))
		s.tell(entriesBeta)
		c.has("a/three:81")
	}
}

// TestAReconnectRemovesNothing: a removal counts once all versions of the kind were answered on the stream.
func TestAReconnectRemovesNothing(t *testing.T) {
	p := newPeer(t)
	c := follow(t, p.address, "")
	s := p.next()
	s.tell(entriesV1, serviceEntry("a/one"), serviceEntry("a/two"))
	s.rest(entriesV1)
	c.has("a/one:80 a/two:80")
	s = c.reopen(p, s)
	testkit.Eventually(t, testkit.Patience, func() error { return errorIf(c.Status().Degraded == nil, "away and not degraded") })
	s.tell(entriesV1, serviceEntry("a/two", port(82)), serviceEntry("a/new"))
	s.tell(entriesBeta)
	c.has("a/new:80 a/one:80 a/two:82")
	if c.Status().Degraded != nil {
		t.Errorf("it can be read again: %v", c.Status().Degraded)
	}
	s.tell(entriesAlpha)
	c.has("a/new:80 a/two:82")
	s = c.reopen(p, s)
	s.tell(entriesAlpha)
	s.tell(entriesBeta)
	s.end <- nil
	c.after(p)
	c.has("a/new:80 a/two:82")
}

// TestTheSameListAgainIsNoChange: contents are compared, not versions.
func TestTheSameListAgainIsNoChange(t *testing.T) {
	p := newPeer(t)
	c := follow(t, p.address, "")
	s := p.next()
	s.tell(entriesV1, serviceEntry("a/one"), serviceEntry("a/two"))
	s.rest(entriesV1)
	c.has("a/one:80 a/two:80")
	events := c.count()
	s.tell(entriesV1, serviceEntry("a/two"), serviceEntry("a/one"))
	s.tell(entriesV1, serviceEntry("a/two", version("7")), serviceEntry("a/one"))
	s = c.reopen(p, s)
	s.tell(entriesV1, serviceEntry("a/two"), serviceEntry("a/one"))
	s.rest(entriesV1)
	if got := c.count(); got != events {
		t.Errorf("%d events of equal lists", got-events)
	}
}

func version(v string) func(*mcpv1alpha1.Resource, *networking.ServiceEntry) {
	return func(m *mcpv1alpha1.Resource, _ *networking.ServiceEntry) { m.Metadata.Version = v }
}

// TestWhatCannotBeUsedRemovesNothing: the rows of hostile lists. Each comes after a good list of two objects.
func TestWhatCannotBeUsedRemovesNothing(t *testing.T) {
	half := serviceEntry("a/two")
	half.Value = half.Value[:len(half.Value)/2]
	noSlash := serviceEntry("two")
	for name, c := range map[string]struct {
		url     string
		entries []*anypb.Any
		want    string
		nack    bool
		problem string
	}{
		"a bad object keeps its last good version": {entriesV1, []*anypb.Any{serviceEntry("a/one", port(0)), serviceEntry("a/two")},
			"a/one:80 a/two:80", false, "ServiceEntry a/one: spec.ports[0].number"},
		"others beside it count": {entriesV1, []*anypb.Any{serviceEntry("a/one", port(0)), serviceEntry("a/three")},
			"a/one:80 a/three:80", false, "ServiceEntry a/one: "},
		"a name without a slash": {entriesV1, []*anypb.Any{serviceEntry("a/one"), noSlash}, "a/one:80 a/two:80", false, "is not namespace/name"},
		"cut in half":            {entriesV1, []*anypb.Any{serviceEntry("a/one"), half}, "a/one:80 a/two:80", false, "cut off"},
		"another message":        {entriesV1, []*anypb.Any{{TypeUrl: "x/y"}}, "a/one:80 a/two:80", false, "is no type.googleapis.com/istio.mcp"},
		"an unknown type":        {"networking.istio.io/v9/ServiceEntry", nil, "a/one:80 a/two:80", true, "which nobody has asked for"},
		"no type":                {"", nil, "a/one:80 a/two:80", true, "which nobody has asked for"},
		"a name twice": {entriesV1, []*anypb.Any{serviceEntry("a/one"), serviceEntry("a/two"), serviceEntry("a/one", port(81))},
			"a/one:80 a/two:80", false, "is twice"},
		"all are bad": {entriesV1, []*anypb.Any{serviceEntry("a/one", port(0)), serviceEntry("a/two", port(0))}, "a/one:80 a/two:80", false, "a/two"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t)
			client := follow(t, p.address, "")
			s := p.next()
			s.tell(entriesV1, serviceEntry("a/one"), serviceEntry("a/two"))
			s.rest(entriesV1)
			client.has("a/one:80 a/two:80")
			answer := s.tell(c.url, c.entries...)
			if nack := answer.GetErrorDetail() != nil; nack != c.nack {
				t.Errorf("answer %v, want a NACK: %t", answer, c.nack)
			}
			client.has(c.want)
			found := client.Status().Problems
			if !strings.Contains(found.Error(), c.problem) || found[0].Remedy == "" {
				t.Errorf("problems %v, want %q with a remedy", found, c.problem)
			}
			// A good list ends it.
			s.tell(entriesV1, serviceEntry("a/one", port(83)))
			client.has("a/one:83")
			if found := client.Status().Problems; len(found) > 0 {
				t.Errorf("problems stay: %v", found)
			}
		})
	}
}

// TestAMessageOf200MiB: it ends the stream before it is in memory, and removes nothing.
func TestAMessageOf200MiB(t *testing.T) {
	p := newPeer(t)
	c := follow(t, p.address, "")
	s := p.next()
	s.tell(entriesV1, serviceEntry("a/one"))
	s.rest(entriesV1)
	c.has("a/one:80")
	large := &anypb.Any{TypeUrl: "x/y", Value: make([]byte, 200<<20)}
	var before, after runtime.MemStats
	m := response(entriesV1, large)
	runtime.GC()
	runtime.ReadMemStats(&before)
	_ = s.ads.Send(m) // the client may have gone before all is sent
	testkit.Eventually(t, testkit.Patience, func() error { return errorIf(c.Status().Degraded == nil, "not degraded") })
	runtime.ReadMemStats(&after)
	if text := c.Status().Degraded.Error(); !strings.Contains(text, "larger than max") || !strings.Contains(text, p.address) {
		t.Errorf("state %q", text)
	}
	// The server's own copy of the message is of this process too.
	if used := after.TotalAlloc - before.TotalAlloc; used > 300<<20 {
		t.Errorf("%d MiB", used>>20)
	}
	s = c.after(p)
	s.tell(entriesV1, serviceEntry("a/one"), serviceEntry("a/two"))
	c.has("a/one:80 a/two:80")
}

// TestListsTogetherAreBounded: a list with which the server's lists have more than the bound is rejected.
func TestListsTogetherAreBounded(t *testing.T) {
	p := newPeer(t)
	c := follow(t, p.address, "")
	s := p.next()
	s.tell(entriesV1, serviceEntry("a/one"))
	large := &anypb.Any{TypeUrl: "x/y", Value: make([]byte, 60<<20)}
	rejected := 0
	for _, url := range []string{"networking.istio.io/v1/Gateway", "networking.istio.io/v1/Sidecar", "networking.istio.io/v1/VirtualService",
		"networking.istio.io/v1/DestinationRule", "networking.istio.io/v1/WorkloadEntry"} {
		if s.tell(url, large).GetErrorDetail() != nil {
			rejected++
		}
	}
	if rejected != 1 || !strings.Contains(c.Status().Problems.Error(), "all lists together") {
		t.Errorf("%d of 300 MiB in five lists rejected: %v", rejected, c.Status().Problems)
	}
	c.has("a/one:80")
}

// TestSilence: a version that a server never answers counts as unknown to it after a while, if it answers others.
func TestSilence(t *testing.T) {
	p := newPeer(t)
	c := follow(t, p.address, "")
	s := p.next()
	s.tell(entriesV1, serviceEntry("a/one"), serviceEntry("a/two"))
	s.tell(entriesV1, serviceEntry("a/two"))
	c.has("a/one:80 a/two:80")
	c.clock.Advance(silentAfter)
	c.has("a/two:80")
	testkit.Eventually(t, testkit.Patience, func() error { return synced(c) })
	// After a reconnect it is the same.
	s = c.reopen(p, s)
	s.tell(entriesV1)
	c.has("a/two:80")
	c.clock.Advance(silentAfter)
	c.has("")
}

// TestEverythingIsAskedForAgain: after a while, and the source is not degraded meanwhile.
func TestEverythingIsAskedForAgain(t *testing.T) {
	p := newPeer(t)
	c := follow(t, p.address, "")
	s := p.next()
	s.tell(entriesV1, serviceEntry("a/one"))
	s.rest(entriesV1)
	c.has("a/one:80")
	c.clock.Advance(againAfter)
	s = c.after(p)
	if err := c.Status().Degraded; err != nil {
		t.Errorf("degraded: %v", err)
	}
	s.tell(entriesV1, serviceEntry("a/two"))
	c.has("a/one:80 a/two:80")
	s.rest(entriesV1)
	c.has("a/two:80")
}

// TestWhatIsLeftOut: Kubernetes' Services as istiod tells them, and objects of another revision.
func TestWhatIsLeftOut(t *testing.T) {
	p := newPeer(t)
	c := follow(t, p.address, "", func(cfg *Config) { cfg.Revision = "blue" })
	s := p.next()
	rev := func(v string) func(*mcpv1alpha1.Resource, *networking.ServiceEntry) {
		return func(m *mcpv1alpha1.Resource, _ *networking.ServiceEntry) {
			m.Metadata.Labels = map[string]string{revisionLabel: v}
		}
	}
	s.tell(entriesV1, serviceEntry("a/synthetic-web"), serviceEntry("a/one"), serviceEntry("a/two", rev("blue")), serviceEntry("a/three", rev("green")))
	c.has("a/one:80 a/two:80")
	s.rest(entriesV1)
	s.tell(entriesV1, serviceEntry("a/one", rev("green")), serviceEntry("a/two", rev("blue")))
	c.has("a/two:80")
}

// TestAServerThatIsAwayAtTheStart: without a saved state the source waits, with one it serves that, and a bad object
// has its saved version.
func TestAServerThatIsAwayAtTheStart(t *testing.T) {
	dir := t.TempDir()
	p := newPeer(t)
	c := follow(t, p.address, dir)
	s := p.next()
	s.tell(entriesV1, serviceEntry("a/one"), serviceEntry("a/two"))
	s.rest(entriesV1)
	testkit.Eventually(t, testkit.Patience, func() error { return synced(c) })
	c.stop()

	// Another one of this address, while nobody listens at another.
	nobody := testkit.FreeAddress(t).String()
	away := follow(t, nobody, "")
	testkit.Eventually(t, testkit.Patience, func() error { return errorIf(away.Status().Degraded == nil, "not degraded") })
	away.clock.Advance(time.Minute)
	if st := away.Status(); st.Settled() || !strings.Contains(st.Degraded.Error(), "configSources") {
		t.Errorf("nothing is known, and it is settled: %+v", st)
	}
	p.server.Stop()
	c = follow(t, p.address, dir)
	testkit.Eventually(t, testkit.Patience, func() error {
		c.clock.Advance(saveEvery)
		return errorIf(!c.Status().Settled(), "not settled")
	})
	c.has("a/one:80 a/two:80")
	if st := c.Status(); st.Synced || st.LastGood.IsZero() || st.Degraded == nil {
		t.Errorf("state %+v", st)
	}
	c.stop()

	// A server that answers with a bad object at once.
	again := newPeer(t)
	c = follow(t, p.address, dir, func(cfg *Config) { cfg.Dial = dialTo(again.address) })
	s = again.next()
	s.tell(entriesV1, serviceEntry("a/one", port(0)), serviceEntry("a/three"))
	c.has("a/one:80 a/three:80")
	s.rest(entriesV1)
	testkit.Eventually(t, testkit.Patience, func() error { return synced(c) })
	c.has("a/one:80 a/three:80")
}

// TestADamagedPolicyOfTheLastGoodStateIsClosed: until the server can be read, what it may have selected is closed.
func TestADamagedPolicyOfTheLastGoodStateIsClosed(t *testing.T) {
	dir := t.TempDir()
	p := newPeer(t)
	c := follow(t, p.address, dir)
	s := p.next()
	const policies = "security.istio.io/v1/AuthorizationPolicy"
	body, err := anypb.New(&security.AuthorizationPolicy{})
	testkit.NoError(t, err)
	policy, err := anypb.New(&mcpv1alpha1.Resource{Metadata: &mcpv1alpha1.Metadata{Name: "a/deny"}, Body: body})
	testkit.NoError(t, err)
	s.tell(policies, policy)
	s.rest(policies)
	testkit.Eventually(t, testkit.Patience, func() error { return synced(c) })
	c.stop()
	files, err := filepath.Glob(filepath.Join(dir, "mcp", "*", "AuthorizationPolicy.security.istio.io", "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("saved in %v, %v", files, err)
	}
	content, err := os.ReadFile(files[0])
	testkit.NoError(t, err)
	testkit.WriteFile(t, files[0], bytes.Replace(content, []byte("sha256"), []byte("sha257"), 1))
	p.server.Stop()
	c = follow(t, p.address, dir)
	testkit.Eventually(t, testkit.Patience, func() error {
		c.clock.Advance(saveEvery)
		return errorIf(c.Status().Held != 1, "nothing is held closed")
	})
}
