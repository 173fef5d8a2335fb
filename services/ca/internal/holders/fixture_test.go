package holders

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/caapi"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const ttl = 24 * time.Hour

// fixture is a Registry on a fake clock.
type fixture struct {
	*Registry
	t     testing.TB
	clock *testkit.Clock
	cfg   Config
	stop  func()
	made  int
}

func newFixture(t testing.TB, change func(*Config)) *fixture {
	t.Helper()
	f := &fixture{t: t, clock: testkit.NewClock(start)}
	f.cfg = Config{Dir: filepath.Join(t.TempDir(), "holders"), LongestTTL: ttl, Clock: f.clock, Log: testkit.Logger(t), Boot: "boot-1"}
	if change != nil {
		change(&f.cfg)
	}
	f.open()
	return f
}

func (f *fixture) open() {
	f.t.Helper()
	f.Registry = testkit.Must(Open(f.cfg))(f.t)
	f.stop = testkit.Background(f.t, f.Run)
}

// kill opens the journal as it is now in another process, as after kill -9.
func (f *fixture) kill() {
	f.t.Helper()
	f.Registry = testkit.Must(Open(f.cfg))(f.t)
	f.stop = testkit.Background(f.t, f.Run)
}

// cert is a new certificate of signer 1 and generation 1, issued now.
func (f *fixture) cert(identity string, change func(*Certificate)) Certificate {
	f.made++
	sum := sha256.Sum256(fmt.Append(nil, f.made))
	c := Certificate{
		Fingerprint: Fingerprint(sum[:16]), Serial: fmt.Sprintf("%x", sum[:10]), Identity: "spiffe://cluster.local/ns/default/sa/" + identity,
		Signer: 1, Generation: 1, AuthorityKeyID: []byte("key-1"), NotAfter: f.clock.Now().Add(ttl), At: f.clock.Now(),
	}
	if change != nil {
		change(&c)
	}
	return c
}

// issue issues cert.
func (f *fixture) issue(identity string, change func(*Certificate)) Certificate {
	c := f.cert(identity, change)
	f.Issued(c)
	return c
}

func inPod(name string) func(*Certificate) {
	return func(c *Certificate) { c.Pod, c.PodUID = "default/"+name, "uid-"+name }
}

func after(c Certificate) func(*Certificate) {
	return func(n *Certificate) { n.Predecessor = c.Fingerprint }
}

func names(holders []caapi.Holder) []string {
	out := []string{}
	for _, h := range holders {
		out = append(out, h.Name)
	}
	return out
}
