package holders

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestWhoIsBehind(t *testing.T) {
	name := func(c Certificate) string { return c.Identity + " " + c.Serial }
	for what, run := range map[string]func(f *fixture) []string{
		"a certificate acknowledges the generation of its answer": func(f *fixture) []string {
			f.issue("a", func(c *Certificate) { c.Generation = 2 })
			return nil
		},
		"a certificate of an earlier generation is behind": func(f *fixture) []string { return []string{name(f.issue("a", nil))} },
		"an acknowledgement by fingerprint counts": func(f *fixture) []string {
			f.Acked(0, 2, []Fingerprint{f.issue("a", nil).Fingerprint}, nil)
			return nil
		},
		"an acknowledgement by Pod counts": func(f *fixture) []string {
			f.issue("a", inPod("web-0"))
			f.Acked(0, 2, nil, []string{"uid-web-0"})
			return nil
		},
		"an acknowledgement does not go back": func(f *fixture) []string {
			c := f.issue("a", nil)
			f.Acked(0, 3, []Fingerprint{c.Fingerprint}, nil)
			f.Acked(0, 1, []Fingerprint{c.Fingerprint}, nil)
			return nil
		},
		"a generation of an earlier epoch is not enough": func(f *fixture) []string {
			c := f.issue("a", nil)
			f.Acked(0, 9, []Fingerprint{c.Fingerprint}, nil)
			f.Acked(1, 1, []Fingerprint{c.Fingerprint}, nil)
			if behind := f.Behind(0, 9); len(behind) != 0 {
				return []string{"of epoch 0: " + behind[0].Name}
			}
			return []string{name(c)}
		},
		"the new certificate of a Pod replaces the one before": func(f *fixture) []string {
			f.issue("a", inPod("web-0"))
			f.clock.Advance(time.Second)
			f.issue("a", func(c *Certificate) { inPod("web-0")(c); c.Generation = 2 })
			return nil
		},
		"one of another identity in the same Pod does not": func(f *fixture) []string {
			c := f.issue("a", inPod("web-0"))
			f.clock.Advance(time.Second)
			f.issue("b", func(c *Certificate) { inPod("web-0")(c); c.Generation = 2 })
			// Both have the name of the Pod, which is that of the newer certificate.
			return []string{"default/web-0 " + c.Serial}
		},
		"a renewal replaces its predecessor": func(f *fixture) []string {
			c := f.issue("a", nil)
			f.issue("a", func(n *Certificate) { after(c)(n); n.Generation = 2 })
			return nil
		},
		"a certificate of another identity does not replace that of its caller": func(f *fixture) []string {
			c := f.issue("a", nil)
			f.issue("b", func(n *Certificate) { after(c)(n); n.Generation = 2 })
			return []string{name(c)}
		},
		"a stream with a replaced certificate acknowledges for the new one": func(f *fixture) []string {
			one := f.issue("a", nil)
			two := f.issue("a", after(one))
			f.issue("a", after(two))
			f.Acked(0, 2, []Fingerprint{one.Fingerprint}, nil)
			return nil
		},
		"a renewal does not undo what its predecessor acknowledged": func(f *fixture) []string {
			one := f.issue("a", nil)
			f.Acked(0, 2, []Fingerprint{one.Fingerprint}, nil)
			f.issue("a", after(one))
			return nil
		},
		"two renewals of one certificate both count": func(f *fixture) []string {
			one := f.issue("a", nil)
			two, three := f.issue("a", after(one)), f.issue("a", after(one))
			f.Acked(0, 2, []Fingerprint{one.Fingerprint}, nil) // whose it is nobody knows
			return sorted(name(two), name(three))
		},
		"and go their own ways": func(f *fixture) []string {
			one := f.issue("a", nil)
			two, three := f.issue("a", after(one)), f.issue("a", after(one))
			f.Acked(0, 2, []Fingerprint{three.Fingerprint}, nil)
			f.issue("a", after(three))
			return []string{name(f.issue("a", after(two)))}
		},
		"two renewals in one Pod are of one agent": func(f *fixture) []string {
			one := f.issue("a", inPod("web-0"))
			f.clock.Advance(time.Second)
			f.issue("a", after(one))
			f.clock.Advance(time.Second)
			f.issue("a", after(one))
			return []string{"default/web-0"}
		},
		"what the caller did not wait for replaces nothing": func(f *fixture) []string {
			one := f.issue("a", nil)
			f.issue("a", func(c *Certificate) { after(one)(c); c.Undelivered, c.Generation = true, 2 })
			return []string{name(one)}
		},
		"unless it is renewed": func(f *fixture) []string {
			one := f.issue("a", nil)
			two := f.issue("a", func(c *Certificate) { after(one)(c); c.Undelivered = true })
			return []string{name(f.issue("a", after(two)))}
		},
		"of two Pods with one name each is named": func(f *fixture) []string {
			c := f.issue("a", func(c *Certificate) { c.Pod, c.PodUID = "default/web-0", "before" })
			f.clock.Advance(time.Second)
			f.issue("a", func(c *Certificate) { c.Pod, c.PodUID = "default/web-0", "now" })
			return []string{"default/web-0", "default/web-0 " + c.Serial}
		},
		"what has expired is not behind": func(f *fixture) []string {
			f.issue("a", nil)
			f.clock.Advance(ttl)
			return nil
		},
	} {
		t.Run(what, func(t *testing.T) {
			f := newFixture(t, func(c *Config) { c.Dir = "" })
			want := run(f)
			epoch := uint64(0)
			if strings.Contains(what, "epoch") {
				epoch = 1
			}
			if got := names(f.Behind(epoch, 2)); !slices.Equal(got, want) {
				t.Errorf("behind %q, want %q", got, want)
			}
		})
	}
}

func sorted(s ...string) []string { slices.Sort(s); return s }

func TestWhoseCertificatesAreOfASigner(t *testing.T) {
	f := newFixture(t, nil)
	one := f.issue("a", inPod("web-0"))
	f.issue("b", func(c *Certificate) { c.Signer, c.AuthorityKeyID = 2, []byte("key-2") })
	if got := names(f.Of(1)); !slices.Equal(got, []string{"default/web-0"}) {
		t.Errorf("of signer 1: %q", got)
	}
	f.issue("a", func(c *Certificate) {
		after(one)(c)
		c.Signer, c.AuthorityKeyID = 2, []byte("key-2")
		c.At = start.Add(time.Second)
	})
	if got := f.Of(1); len(got) != 0 {
		t.Errorf("of signer 1 after the renewal: %v", got)
	}
	if got := f.KeyIDs(1, 2); len(got) != 2 || string(got[0]) != "key-1" || string(got[1]) != "key-2" {
		t.Errorf("key ids %q", got)
	}
	counts := f.Counts(0, 1)
	if diff := cmp.Diff(map[uint64]int{2: 2}, counts.BySigner); diff != "" || counts.Total != 2 || counts.Acknowledged != 2 {
		t.Errorf("counts %+v %s", counts, diff)
	}
	f.clock.Advance(ttl)
	if got := f.KeyIDs(1, 2); len(got) != 0 {
		t.Errorf("key ids of expired certificates: %q", got)
	}
}

func TestCertificatesOfDeletedPodsDoNotCount(t *testing.T) {
	f := newFixture(t, nil)
	f.issue("a", inPod("web-0"))
	f.issue("a", inPod("web-1"))
	if got := uids(f.Pods()); !slices.Equal(got, []string{"uid-web-0", "uid-web-1"}) {
		t.Errorf("Pods %q", got)
	}
	f.Gone([]string{"uid-web-0", "another"})
	if got := names(f.Behind(0, 2)); !slices.Equal(got, []string{"default/web-1"}) {
		t.Errorf("behind %q", got)
	}
	if got := uids(f.Pods()); !slices.Equal(got, []string{"uid-web-1"}) {
		t.Errorf("Pods %q", got)
	}
	// Whoever said that it is gone was wrong.
	f.clock.Advance(time.Second)
	f.issue("a", inPod("web-0"))
	if got := names(f.Behind(0, 2)); !slices.Equal(got, []string{"default/web-0", "default/web-1"}) {
		t.Errorf("behind after another certificate %q", got)
	}
}

// A stolen identity that asks for certificates without end takes only its own share, and the gate stays closed.
func TestTheIdentityWithTheMostIsFolded(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.MaxCertificates, c.Dir = 1000, "" })
	for i := range 300 {
		f.issue("quiet", inPod(fmt.Sprint("quiet-", i)))
	}
	for range 5000 {
		f.clock.Advance(time.Millisecond)
		f.issue("greedy", nil)
	}
	quiet, folded := 0, ""
	behind := f.Behind(0, 2)
	for _, h := range behind {
		switch {
		case strings.HasPrefix(h.Name, "default/quiet-"):
			quiet++
		case strings.Contains(h.Name, " certificates of "):
			folded = h.Name
		}
	}
	if quiet != 300 || len(behind) > 1001 {
		t.Errorf("%d of 300 quiet holders of %d", quiet, len(behind))
	}
	if want := fmt.Sprintf("%d certificates of spiffe://cluster.local/ns/default/sa/greedy", 5000-(len(behind)-301)); folded != want {
		t.Errorf("folded %q, want %q", folded, want)
	}
	if got := f.Counts(0, 1); got.Total != 5300 || got.BySigner[1] != 5300 {
		t.Errorf("counts %+v", got)
	}
	f.clock.Advance(ttl)
	if got := f.Behind(0, 2); len(got) != 0 {
		t.Errorf("after a day: %v", got)
	}
}

func TestAClockThatJumpsMakesDoubt(t *testing.T) {
	f := newFixture(t, nil)
	f.issue("a", nil)
	f.clock.Advance(48 * time.Hour)
	if got := f.Behind(0, 2); len(got) != 0 {
		t.Fatalf("expired: %v", got)
	}
	f.clock.Advance(-48 * time.Hour)
	if got := names(f.Behind(0, 2)); !slices.Contains(got, "unknown certificates until 2026-03-03T12:00:00Z") {
		t.Errorf("set back: %q", got)
	}
}

func uids(pods []Pod) []string {
	var out []string
	for _, p := range pods {
		out = append(out, p.UID)
	}
	return out
}

// What was issued by a clock that was ahead is replaced by what is issued once the clock is right, here, after a
// restart and in another replica.
func TestACertificateOfAClockThatWasAheadIsReplaced(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.Passed = func() time.Duration { return 0 } })
	f.clock.Advance(23 * time.Hour)
	early := f.issue("a", inPod("a"))
	late := f.issue("a", func(c *Certificate) { inPod("a")(c); c.At, c.Signer = c.At.Add(time.Second), 2 })
	var told []Certificate
	for feed := f.Feed(); len(told) < 2; {
		some, _ := feed.Next(1)
		told = append(told, some...)
	}
	f.clock.Advance(-23 * time.Hour)
	restarted := newFixture(t, func(c *Config) { c.Dir, c.Clock = f.cfg.Dir, f.clock })
	other := newFixture(t, func(c *Config) { c.Clock = f.clock })
	other.clock = f.clock
	other.Merge(told)
	if got := f.Of(1, 2); len(got) != 2 || got[0].Serial != late.Serial { // and what is not known
		t.Fatalf("before: %+v", got)
	}
	now := f.cert("a", func(c *Certificate) { inPod("a")(c); c.At, c.Signer = c.At.Add(time.Minute), 3 })
	f.clock.Advance(time.Minute)
	for name, r := range map[string]*fixture{"here": f, "another replica": other, "after a restart": restarted} {
		r.Issued(now)
		if got := r.Counts(0, 1).BySigner; !maps.Equal(got, map[uint64]int{3: 1}) {
			t.Errorf("%s: certificates of signers %v after %s, %s", name, got, early.Serial, late.Serial)
		}
	}
	if got := f.Counts(0, 1).UnknownReason; got != "the clock was set forward" {
		t.Errorf("unknown because %q", got)
	}
}

// The records of Pods that are gone are walked, too, when the clock is set back.
func TestAClockThatIsSetBackAfterPodsAreGone(t *testing.T) {
	f := newFixture(t, nil)
	f.issue("a", inPod("one"))
	f.issue("a", inPod("two"))
	f.clock.Advance(2 * ttl)
	f.sweep(f.clock.Now())
	f.issue("b", nil)
	f.clock.Advance(-time.Hour)
	if got := names(f.Behind(0, 2)); len(got) != 2 || !strings.HasPrefix(got[1], "unknown certificates") {
		t.Errorf("behind %q", got)
	}
}
