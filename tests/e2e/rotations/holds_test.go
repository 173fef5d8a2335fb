package rotations

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"fairlead.dev/tests/internal/netns"
)

// envoys are the Envoys that run, by member: a process, and when it was started.
func (r *rig) envoys() map[string]string {
	out := map[string]string{}
	for _, name := range members {
		for _, pid := range netns.Children(r.members[name].agent().PID()) {
			stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // one that has ended has none
			fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
			if len(fields) > 19 {
				out[name] += fmt.Sprintf(" %d of %s", pid, fields[19])
			}
		}
	}
	return out
}

// handshake are the counters of a TLS handshake that failed, and of those that did not.
var handshake = regexp.MustCompile(`(?m)^(listener\.[^ ]*|cluster\.outbound[^ ]*)\.ssl\.(handshake|session_reused|connection_error|fail_verify_[a-z_]*): (\d+)$`)

// handshakes sums the counters of all Envoys.
func (r *rig) handshakes(t *testing.T) map[string]int {
	t.Helper()
	sums := map[string]int{}
	for _, name := range members {
		page, err := r.members[name].admin("/stats?filter=ssl")
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, m := range handshake.FindAllStringSubmatch(string(page), -1) {
			n, _ := strconv.Atoi(m[3])
			side := "server "
			if strings.HasPrefix(m[1], "cluster") {
				side = "client "
			}
			sums[side+m[2]] += n
		}
	}
	return sums
}

// during runs a subtest and returns what the traffic did meanwhile, and for a time after.
func (r *rig) during(t *testing.T, after time.Duration, do func(t *testing.T)) result {
	t.Helper()
	r.traffic.take()
	before, began := r.handshakes(t), time.Now()
	do(t)
	time.Sleep(after)
	got, took := r.traffic.take(), time.Since(began)
	var tls []string
	for name, n := range r.handshakes(t) {
		if n != before[name] {
			tls = append(tls, fmt.Sprintf("%s %d", name, n-before[name]))
		}
	}
	slices.Sort(tls)
	t.Logf("%.1f s: %d new connections, %.0f a second, %d messages over open streams, %d failed, the slowest took %s; TLS: %s", took.Seconds(),
		got.connections, float64(got.connections)/took.Seconds(), got.messages, got.failed, got.slowest.Round(time.Millisecond),
		strings.Join(tls, ", "))
	return got
}

// holds runs a subtest in which nothing may fail, nor in the time after: no request, no stream, no Envoy.
func (r *rig) holds(t *testing.T, name string, after time.Duration, do func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Helper()
		envoys := r.envoys()
		got := r.during(t, after, do)
		if got.connections == 0 || got.messages == 0 {
			t.Error(errNothing)
		}
		if got.failed > 0 {
			t.Errorf("%d failed:\n  %s", got.failed, strings.Join(got.failures, "\n  "))
		}
		if now := r.envoys(); len(now) != len(members) || !maps.Equal(now, envoys) {
			t.Errorf("the Envoys are %v, were %v", now, envoys)
		}
	})
}
