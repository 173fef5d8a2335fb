package replicas

import (
	"slices"
	"strings"
	"testing"
	"time"

	"fairlead.dev/services/ca/internal/holders"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const ttl = 24 * time.Hour

func all(uint64) bool { return true }

func TestWhatIsWrongWithTheReplicas(t *testing.T) {
	at := func(addresses ...string) map[string]bool {
		out := map[string]bool{}
		for _, a := range addresses {
			out[a] = true
		}
		return out
	}
	good := func(m *members, name string, now time.Time) {
		m.hear(name+":1", &member{name: name}, now)
		m.completed(name + ":1")
	}
	for name, tc := range map[string]struct {
		happens func(*members)
		after   time.Duration
		problem string
		silent  bool
	}{
		"before the first lookup": {func(*members) {}, 0, "not been looked up", false},
		"no addresses":            {func(m *members) { m.looked(at(), start) }, 0, "no replica has been found", false},
		"this one alone":          {func(m *members) { m.looked(at("a:1"), start); m.own["a:1"] = true }, 0, "", false},
		"one does not answer":     {func(m *members) { m.looked(at("b:1"), start) }, 0, "b:1 has not answered", false},
		"another":                 {func(m *members) { m.looked(at("b:1"), start); good(m, "b", start) }, 0, "", false},
		"it has not sent everything": {func(m *members) {
			m.looked(at("b:1"), start)
			m.hear("b:1", &member{name: "b"}, start)
		}, 0, "replica b has not sent all", false},
		"it is away for a moment": {func(m *members) {
			m.looked(at("b:1"), start)
			good(m, "b", start)
			m.lost("b:1")
		}, time.Second, "connection to replica b is lost", false},
		"it comes back and has not sent everything": {func(m *members) {
			m.looked(at("b:1"), start)
			good(m, "b", start)
			m.lost("b:1")
			m.hear("b:1", &member{name: "b"}, start)
		}, 0, "replica b has not sent all", false},
		"it comes back at another address": {func(m *members) {
			good(m, "b", start)
			m.looked(at("b:2"), start)
			m.hear("b:2", &member{name: "b"}, start)
		}, 0, "replica b has not sent all", false},
		"it says nothing": {func(m *members) { m.looked(at("b:1"), start); good(m, "b", start) }, 20 * time.Second, "replica b is late", false},
		"it is away": {func(m *members) {
			m.looked(at("b:1"), start)
			good(m, "b", start)
			m.lost("b:1")
		}, 31 * time.Second, "", true},
		"it is gone from the Service": {func(m *members) {
			good(m, "b", start)
			m.lost("b:1")
			m.looked(at("a:1"), start.Add(ttl))
			m.own["a:1"] = true
		}, ttl, "", true},
		"it is gone for longer than any certificate lives": {func(m *members) {
			good(m, "b", start)
			m.lost("b:1")
			m.looked(at("a:1"), start.Add(ttl+time.Second))
			m.own["a:1"] = true
		}, ttl + time.Second, "", false},
		"it is known from an earlier run": {func(m *members) {
			m.remember("b", known{start.Add(-time.Hour), "r"})
			m.looked(at("a:1"), start)
			m.own["a:1"] = true
		}, 0, "", true},
		"its clock is ahead": {func(m *members) {
			m.looked(at("b:1"), start)
			m.hear("b:1", &member{name: "b", ahead: time.Hour}, start)
			m.completed("b:1")
		}, 0, "clock disagrees: that of replica b is 1h0m0s ahead", false},
		"its clock is behind": {func(m *members) {
			m.looked(at("b:1"), start)
			m.hear("b:1", &member{name: "b", ahead: -31 * time.Second}, start)
			m.completed("b:1")
		}, 0, "clock disagrees: that of replica b is -31s ahead", false},
		"it cannot write": {func(m *members) {
			m.looked(at("b:1"), start)
			m.hear("b:1", &member{name: "b", problem: "disk full"}, start)
			m.completed("b:1")
		}, 0, "replica b: disk full", false},
		"another of this name": {func(m *members) { m.looked(at("a:2"), start); m.twin = "a:2" }, 0, "a:2 has the same name", false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMembers(ttl)
			tc.happens(&m)
			got := strings.Join(m.problems(start.Add(tc.after)), "; ")
			if !strings.Contains(got, tc.problem) || (got == "") != (tc.problem == "") {
				t.Errorf("problems %q, want %q", got, tc.problem)
			}
			silent := m.silent(start.Add(tc.after))
			if (len(silent) == 1) != tc.silent {
				t.Errorf("silent %v, want %v", silent, tc.silent)
			}
			for _, r := range m.replicas(start.Add(tc.after)) {
				if tc.silent && !strings.Contains(r.Problem, "has not been heard of since") {
					t.Errorf("replica %+v", r)
				}
			}
		})
	}
}

func TestFoldedCertificatesOfOthersAreNamed(t *testing.T) {
	m := newMembers(ttl)
	seven := holders.Folded{Identity: "spiffe://a/b", Signer: 1, Count: 7, Until: start.Add(time.Hour)}
	m.hear("b:1", &member{name: "b", folded: []holders.Folded{seven}}, start)
	got := m.folded(start, all)
	if len(got) != 1 || got[0].Name != "7 certificates of spiffe://a/b from signer 1 at replica b" {
		t.Errorf("%v", got)
	}
	if got := m.folded(start, func(signer uint64) bool { return slices.Contains([]uint64{2}, signer) }); len(got) != 0 {
		t.Errorf("of signer 2: %v", got)
	}
	if got := m.folded(start.Add(time.Hour), all); len(got) != 0 {
		t.Errorf("expired: %v", got)
	}
}
