package holders

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
)

// naive follows the rules of the package comment certificate by certificate, without any index.
type naive struct{ certs []*known }

type known struct {
	Certificate
	epoch, generation uint64
}

func (n *naive) find(print Fingerprint, identity string) *known {
	for _, c := range n.certs {
		if c.Fingerprint == print && c.Identity == identity {
			return c
		}
	}
	return nil
}

func (n *naive) pod(c *known) string {
	if c.PodUID != "" {
		return c.PodUID
	}
	if before := n.find(c.Predecessor, c.Identity); before != nil {
		return n.pod(before)
	}
	return ""
}

// successors are those that name c as their predecessor and have arrived.
func (n *naive) successors(c *known) []*known {
	var out []*known
	for _, s := range n.certs {
		if s.Predecessor == c.Fingerprint && s.Identity == c.Identity && n.delivered(s) {
			out = append(out, s)
		}
	}
	return out
}

func (n *naive) delivered(c *known) bool { return !c.Undelivered || len(n.successors(c)) > 0 }

func (n *naive) replaced(c *known) bool {
	pod := n.pod(c)
	if pod == "" {
		return len(n.successors(c)) > 0
	}
	return slices.ContainsFunc(n.certs, func(o *known) bool {
		return o.Identity == c.Identity && n.pod(o) == pod && n.delivered(o) &&
			cmp.Or(o.At.Compare(c.At), bytes.Compare(o.Fingerprint[:], c.Fingerprint[:])) > 0
	})
}

func (n *naive) live(now time.Time) []*known {
	var out []*known
	for _, c := range n.certs {
		if c.NotAfter.After(now) && !n.replaced(c) {
			out = append(out, c)
		}
	}
	return out
}

// spread passes acknowledgements on until nothing changes.
func (n *naive) spread(now time.Time) {
	raise := func(c, from *known) bool {
		if c == from || cmp.Or(cmp.Compare(c.epoch, from.epoch), cmp.Compare(c.generation, from.generation)) >= 0 || !from.NotAfter.After(now) {
			return false
		}
		c.epoch, c.generation = from.epoch, from.generation
		return true
	}
	for again := true; again; {
		again = false
		for _, c := range n.certs {
			if pod := n.pod(c); pod != "" {
				for _, o := range n.certs {
					again = o.Identity == c.Identity && n.pod(o) == pod && raise(o, c) || again
				}
			} else if next := n.successors(c); len(next) == 1 {
				again = raise(next[0], c) || again
			}
		}
	}
}

func (n *naive) behind(epoch, generation uint64, now time.Time) []string {
	var out []string
	for _, c := range n.live(now) {
		if cmp.Or(cmp.Compare(c.epoch, epoch), cmp.Compare(c.generation, generation)) < 0 {
			out = append(out, c.Serial)
		}
	}
	slices.Sort(out)
	return out
}

func serials(f *fixture, epoch, generation uint64) []string {
	var out []string
	for _, h := range f.Behind(epoch, generation) {
		out = append(out, h.Serial)
	}
	slices.Sort(out)
	return out
}

func TestRandomHistories(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { randomHistory(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

func randomHistory(t *testing.T, random *rand.Rand) {
	f, n := newFixture(t, nil), &naive{}
	generation, epoch := uint64(1), uint64(0)
	// pick prefers certificates that count, and takes those just before them, too.
	pick := func() *known {
		live := n.live(f.clock.Now())
		if len(live) == 0 {
			return nil
		}
		c := live[random.IntN(len(live))]
		// One that was replaced longer ago than four times is not known any more.
		if before := n.find(c.Predecessor, c.Identity); before != nil && f.knows(before.Fingerprint) && random.IntN(3) == 0 {
			return before
		}
		return c
	}
	for step := range 150 {
		f.clock.Advance(time.Duration(1+random.IntN(3_000_000)) * time.Millisecond)
		now := f.clock.Now()
		f.sweep(now) // what has expired passes nothing on
		switch random.IntN(8) {
		case 0, 1, 2, 3:
			c := f.cert(fmt.Sprint("a", random.IntN(3)), func(c *Certificate) {
				c.Epoch, c.Generation, c.NotAfter = epoch, generation-uint64(random.IntN(2)), now.Add(ttl).Truncate(time.Second)
				c.Undelivered = random.IntN(6) == 0
				switch before := pick(); {
				case random.IntN(3) == 0:
					inPod(fmt.Sprint("p", random.IntN(3)))(c)
				case before != nil && random.IntN(4) > 0:
					c.Predecessor = before.Fingerprint
					if random.IntN(8) > 0 {
						c.Identity = before.Identity
					}
				}
			})
			f.Issued(c)
			n.certs = append(n.certs, &known{c, c.Epoch, c.Generation})
		case 4, 5:
			if c := pick(); c != nil {
				f.Acked(epoch, generation, []Fingerprint{c.Fingerprint}, nil)
				if cmp.Or(cmp.Compare(c.epoch, epoch), cmp.Compare(c.generation, generation)) < 0 {
					c.epoch, c.generation = epoch, generation
				}
			}
		case 6:
			if generation++; random.IntN(10) == 0 {
				epoch, generation = epoch+1, 1
			}
		case 7:
			if random.IntN(2) == 0 {
				f.stop()
				f.open()
			} else {
				f.kill()
			}
			// Agents acknowledge again what they have.
			for _, c := range n.certs {
				f.Acked(c.epoch, c.generation, []Fingerprint{c.Fingerprint}, nil)
			}
		}
		n.spread(now)
		for _, at := range []uint64{generation - 1, generation, generation + 1} {
			if got, want := serials(f, epoch, at), n.behind(epoch, at, now); !slices.Equal(got, want) {
				n.dump(t, got, want)
				t.Fatalf("step %d, generation %d: behind %q, want %q", step, at, got, want)
			}
		}
		if all := names(f.Behind(epoch+1, 0)); len(slices.Compact(slices.Clone(all))) != len(all) {
			t.Fatalf("names are not unique: %q", all)
		}
	}
}

func (f *fixture) sweep(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.table.sweep(now)
}

func (f *fixture) knows(print Fingerprint) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, ok := f.table.byPrint[print]
	return ok && f.table.entries[i].notAfter > f.clock.Now().Unix()
}

// Replicas learn of certificates in another order than they were issued in, and more than once.
func TestTheOrderDoesNotMatter(t *testing.T) {
	for seed := range uint64(1000) {
		random := rand.New(rand.NewPCG(seed, 2))
		f := &fixture{t: t, clock: testkit.NewClock(start)}
		var certs []Certificate
		for range 5 {
			f.clock.Advance(time.Second)
			certs = append(certs, f.cert(fmt.Sprint("a", random.IntN(2)), func(c *Certificate) {
				c.Undelivered = random.IntN(5) == 0
				if len(certs) > 0 && random.IntN(3) > 0 {
					c.Predecessor = certs[max(0, len(certs)-1-random.IntN(3))].Fingerprint
				} else if random.IntN(2) == 0 {
					inPod(fmt.Sprint("p", random.IntN(2)))(c)
				}
			}))
		}
		var want []string
		for turn := range 6 {
			table := newTable(1000)
			for _, c := range certs {
				table.issued(&c, start)
			}
			table.issued(&certs[0], start)
			var got []string
			for _, h := range table.behind(9, 9, start) {
				got = append(got, h.Serial)
			}
			slices.Sort(got)
			if turn == 0 {
				want = got
			}
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d: %q, want %q", seed, got, want)
			}
			random.Shuffle(len(certs), func(i, j int) { certs[i], certs[j] = certs[j], certs[i] })
		}
	}
}

// dump logs what is known around the certificates about which two lists differ.
func (n *naive) dump(t *testing.T, got, want []string) {
	for _, c := range n.certs {
		if slices.Contains(got, c.Serial) == slices.Contains(want, c.Serial) {
			continue
		}
		for _, o := range n.certs {
			near := o == c || o.Predecessor == c.Fingerprint || c.Predecessor == o.Fingerprint || n.pod(o) == n.pod(c) && n.pod(o) != ""
			if o.Identity == c.Identity && near {
				t.Logf("%s after %x, Pod %q of %q, at %s, undelivered %v, acknowledged %d/%d, the one: %v", o.Serial, o.Predecessor[:4], o.PodUID,
					n.pod(o), o.At.Format("02T15:04:05"), o.Undelivered, o.epoch, o.generation, o == c)
			}
		}
	}
}
