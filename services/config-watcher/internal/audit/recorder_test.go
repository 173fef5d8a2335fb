package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/object"
)

func callOf(account string) context.Context {
	return auth.NewContext(context.Background(), auth.Peer{ID: spiffeid.RequireFromString("spiffe://cluster.local/ns/a/sa/" + account),
		Method: auth.MethodMTLS})
}

var errNo = status.Error(codes.PermissionDenied, "no")

func entriesOf(t *testing.T, l *Log, n int) []Entry {
	t.Helper()
	lines, err := l.Last(n)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]Entry, len(lines))
	for i, line := range lines {
		if err := json.Unmarshal([]byte(line), &out[i]); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// TestFloodOfRefusals: hours of refusals of one caller do not displace the lines of writes and of another's refusal.
func TestFloodOfRefusals(t *testing.T) {
	clock := testkit.NewClock(epoch)
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, path, func(c *Config) { c.Clock, c.MaxBytes, c.Keep = clock, 16<<10, 2 })
	r := NewRecorder(l)
	appendAll(t, l, 0, 3)
	r.Refuse(callOf("rightful"), "create", nil, errNo, false)
	keys := make([]object.Key, maxObjects)
	for i := range keys {
		keys[i] = object.Key{Group: "networking.istio.io", Kind: "VirtualService", Namespace: strings.Repeat("n", 253),
			Name: fmt.Sprint(i, strings.Repeat("<", 5000))}
	}
	const hours, perMinute = 12, 30
	for range hours * 60 {
		clock.Advance(time.Minute)
		for range perMinute {
			r.Refuse(callOf("viewer"), "apply", keys, errNo, false)
		}
	}
	writes, rightful := 0, 0
	for _, e := range entriesOf(t, l, 10000) {
		switch {
		case e.Result == Accepted:
			writes++
		case strings.HasSuffix(e.Identity, "/rightful"):
			rightful++
		case len(e.Objects) > 0 && len(e.Objects[0].Name) > maxRefusedName+len("..."):
			t.Fatalf("a name of %d bytes", len(e.Objects[0].Name))
		case len(e.Objects) > maxRefusedObjects || len(e.Objects)+e.More != len(keys):
			t.Fatalf("a refusal with %d objects and %d more", len(e.Objects), e.More)
		}
	}
	if writes != 3 || rightful != 1 {
		t.Errorf("%d writes and %d refusals of another are left", writes, rightful)
	}
	intact(t, l, "3 lines, 1 to 3")
	intact(t, l, "refused writes: ")
	lines, err := linesOf(path + refusedSuffix)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		if len(line) > refusedMaxBytes/800 {
			t.Fatalf("a line of %d bytes", len(line))
		}
	}
	var bytes int64
	for _, file := range []string{path + refusedSuffix, rotated(path+refusedSuffix, 1), rotated(path+refusedSuffix, 2)} {
		if info, err := os.Stat(file); err == nil {
			bytes += info.Size()
		}
	}
	if most := int64(refusedKeep+1) * (refusedMaxBytes + 8<<10); bytes == 0 || bytes > most {
		t.Errorf("refusals have %d bytes, at most %d", bytes, most)
	}
}

// TestRefusalsAreBounded: a thousand refusals of one caller make a few lines, the next line counts the rest, and
// another caller has a quota of its own.
func TestRefusalsAreBounded(t *testing.T) {
	clock := testkit.NewClock(epoch)
	l := open(t, filepath.Join(t.TempDir(), "audit.log"), func(c *Config) { c.Clock = clock })
	r := NewRecorder(l)
	for range 1000 {
		r.Refuse(callOf("b"), "create", nil, errNo, false)
	}
	if got := entriesOf(t, l, 1000); len(got) != refusedAtOnce {
		t.Errorf("%d lines", len(got))
	}
	r.Refuse(callOf("c"), "create", nil, errNo, false)
	if last := entriesOf(t, l, 1)[0]; !strings.HasSuffix(last.Identity, "/c") || last.Suppressed != 0 {
		t.Errorf("another's refusal: %+v", last)
	}
	clock.Advance(refusedEvery)
	r.Refuse(callOf("b"), "create", nil, errNo, false)
	if last := entriesOf(t, l, 1)[0]; last.Suppressed != 1000-refusedAtOnce {
		t.Errorf("last line %+v", last)
	}
}

// TestTamperedRefusals: Verify finds changed lines in the file of refusals.
func TestTamperedRefusals(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, path)
	appendAll(t, l, 0, 2)
	NewRecorder(l).Refuse(callOf("b"), "create", nil, errNo, false)
	raw, err := os.ReadFile(path + refusedSuffix)
	if err == nil {
		err = os.WriteFile(path+refusedSuffix, []byte(strings.Replace(string(raw), "sa/b", "sa/c", 1)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, broken, err := l.Verify(); err != nil || !strings.Contains(broken, refusedSuffix+":1") {
		t.Errorf("broken %q, %v", broken, err)
	}
}
