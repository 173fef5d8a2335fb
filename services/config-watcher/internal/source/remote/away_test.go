package remote

import (
	"errors"
	"testing"
	"time"

	"fairlead.dev/services/config-watcher/internal/source"
)

// TestHowLongAClusterIsAway: contacts are judged by what the source says at times.
func TestHowLongAClusterIsAway(t *testing.T) {
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(d time.Duration) time.Time { return start.Add(d) }
	lost := func(kind string, since time.Duration) source.Status {
		bad := source.KindStatus{Name: kind, Degraded: errors.New("away"), Since: at(since)}
		return source.Status{Synced: true, Kinds: []source.KindStatus{{Name: "Pod"}, bad}}
	}
	followed := source.Status{Synced: true, Kinds: []source.KindStatus{{Name: "Pod"}}}
	saved := func(last time.Duration) source.Status { return source.Status{LastGood: at(last)} }
	type look struct {
		after time.Duration
		says  source.Status
		stale bool
	}
	for name, looks := range map[string][]look{
		"followed": {{0, followed, false},
			{time.Hour, followed, false}},
		"never read": {{0, source.Status{}, false},
			{time.Hour, source.Status{}, false}},
		"away for less": {{0, lost("Pod", 0), false},
			{10*time.Minute - 1, lost("Pod", 0), false}},
		"away for longer":    {{10 * time.Minute, lost("Pod", 0), true}},
		"endpoints alone":    {{10 * time.Minute, lost("EndpointSlice.discovery.k8s.io", 0), true}},
		"services alone":     {{10 * time.Minute, lost("Service", 0), true}},
		"Nodes do not count": {{time.Hour, lost("Node", 0), false}},
		"Namespaces neither": {{time.Hour, lost("Namespace", 0), false}},
		"saved, a moment ago": {{0, saved(-time.Minute), false},
			{9 * time.Minute, saved(-time.Minute), true}},
		"saved, long ago": {{0, saved(-time.Hour), true}},
		"saved, then away": {{0, saved(-9 * time.Minute), false},
			{time.Minute, lost("Pod", time.Minute), true}},
		"back for a moment": {{time.Hour, lost("Pod", 0), true},
			{time.Hour + time.Second, followed, true},
			{time.Hour + 2*time.Second, lost("Pod", time.Hour), true}},
		"back": {{time.Hour, lost("Pod", 0), true},
			{time.Hour + time.Second, followed, true},
			{time.Hour + 6*time.Second, followed, false}},
		"back, and away again": {{time.Hour, lost("Pod", 0), true},
			{61 * time.Minute, followed, true},
			{62 * time.Minute, followed, false},
			{70 * time.Minute, lost("Pod", 63*time.Minute), false},
			{73 * time.Minute, lost("Pod", 63*time.Minute), true}},
		"new credentials": {{9 * time.Minute, lost("Pod", 0), false},
			{9*time.Minute + time.Second, followed, false},
			{9*time.Minute + 3*time.Second, lost("Pod", 9*time.Minute+2*time.Second), false},
			{10 * time.Minute, lost("Pod", 9*time.Minute+2*time.Second), true}},
		"comes and goes for long": {{0, lost("Pod", 0), false},
			{5 * time.Minute, followed, false},
			{5*time.Minute + 4*time.Second, lost("Pod", 5*time.Minute+4*time.Second), false},
			{10 * time.Minute, lost("Pod", 5*time.Minute+4*time.Second), true}},
	} {
		t.Run(name, func(t *testing.T) {
			var k contact
			for i, l := range looks {
				k.judge(l.says, at(l.after), 10*time.Minute)
				if k.stale != l.stale || k.judged != l.says.Settled() {
					t.Fatalf("look %d, after %s: %+v, want stale %t", i, l.after, k, l.stale)
				}
			}
		})
	}
}
