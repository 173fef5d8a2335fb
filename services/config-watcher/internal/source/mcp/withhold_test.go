package mcp

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/withheld"
)

// entries are n ServiceEntries, and what client.has says of them.
func entries(prefix string, n int) (list []*anypb.Any, text []string) {
	for i := range n {
		name := fmt.Sprintf("a/%s%02d", prefix, i)
		list, text = append(list, serviceEntry(name)), append(text, name+":80")
	}
	return list, text
}

func all(parts ...[]string) string {
	var out []string
	for _, p := range parts {
		out = append(out, p...)
	}
	return strings.Join(out, " ")
}

// withholds waits until so many ServiceEntries are withheld.
func (c *client) withholds(n int) {
	c.t.Helper()
	testkit.Eventually(c.t, testkit.Patience, func() error {
		got := 0
		for _, w := range c.Status().Withheld {
			got += w.Objects
		}
		if held := c.Status().State() == source.Held; got != n || held != (n > 0) {
			return fmt.Errorf("%d are withheld, want %d; held: %t", got, n, held)
		}
		return nil
	})
}

// until moves the client's clock to the moment of a second reading.
func (c *client) until(p *peer, wait time.Duration) *stream {
	c.t.Helper()
	c.clock.Advance(wait)
	return c.after(p)
}

// TestAnEmptyListIsHeld: what a list lacks that is much shorter stays until a second stream says the same, 30 s later,
// which the client opens itself. What is new counts at once.
func TestAnEmptyListIsHeld(t *testing.T) {
	p := newPeer(t)
	c := follow(t, p.address, "")
	s := p.next()
	before, was := entries("b", 20)
	s.tell(entriesV1, before...)
	s.rest(entriesV1)
	c.has(all(was))
	fresh, is := entries("c", 15)
	s.tell(entriesV1, fresh...)
	c.has(all(was, is))
	c.withholds(20)
	// The same list again on this stream, and a stream that ends early, confirm nothing.
	c.clock.Advance(withheld.Wait - time.Second)
	s = c.reopen(p, s)
	c.has(all(was, is))
	s.tell(entriesV1, fresh...)
	s.rest(entriesV1)
	c.withholds(20)
	s = c.until(p, time.Second)
	s.tell(entriesV1, fresh...)
	c.has(all(was, is))
	s.rest(entriesV1)
	c.has(all(is))
	c.withholds(0)
}

// TestWhatComesBackWasNeverGone, and half of a list goes at once.
func TestWhatComesBackWasNeverGone(t *testing.T) {
	p := newPeer(t)
	c := follow(t, p.address, "")
	s := p.next()
	before, was := entries("b", 20)
	s.tell(entriesV1, before...)
	s.rest(entriesV1)
	c.has(all(was))
	events := c.count()
	s.tell(entriesV1)
	c.withholds(20)
	s = c.until(p, withheld.Wait)
	s.tell(entriesV1, before...)
	s.rest(entriesV1)
	c.withholds(0)
	if n := c.count(); n != events {
		t.Errorf("%d events", n-events)
	}
	s.tell(entriesV1, before[:10]...)
	c.has(all(was[:10]))
	s.tell(entriesV1)
	c.has("")
}

// TestAcceptEndsTheWait at once.
func TestAcceptEndsTheWait(t *testing.T) {
	p := newPeer(t)
	c := follow(t, p.address, "")
	s := p.next()
	before, was := entries("b", 20)
	s.tell(entriesV1, before...)
	s.rest(entriesV1)
	s.tell(entriesV1)
	c.has(all(was))
	c.withholds(20)
	if n := c.Accept(); n != 20 || c.delivered() != "" || c.Accept() != 0 {
		t.Errorf("accepts %d, %q is left", n, c.delivered())
	}
	c.withholds(0)
	s.tell(entriesV1, before[:1]...)
	c.has(was[0])
}

// TestTheFirstListsAreComparedWithTheSavedState: a server that is restored together with config-watcher.
func TestTheFirstListsAreComparedWithTheSavedState(t *testing.T) {
	p, dir := newPeer(t), t.TempDir()
	c := follow(t, p.address, dir)
	s := p.next()
	before, was := entries("b", 20)
	s.tell(entriesV1, before...)
	s.rest(entriesV1)
	testkit.Eventually(t, testkit.Patience, func() error { return synced(c) })
	for range 2 { // the second time from what was saved while it was withheld
		c.stop()
		c = follow(t, p.address, dir)
		s = p.next()
		s.tell(entriesV1, serviceEntry("a/new"))
		s.rest(entriesV1)
		c.has(all(was, []string{"a/new:80"}))
		c.withholds(20)
		testkit.Eventually(t, testkit.Patience, func() error { return synced(c) })
	}
	s = c.until(p, withheld.Wait)
	s.tell(entriesV1, serviceEntry("a/new"))
	s.rest(entriesV1)
	c.has("a/new:80")
	c.stop()
	c = follow(t, p.address, dir)
	s = p.next()
	s.tell(entriesV1, serviceEntry("a/new"))
	s.rest(entriesV1)
	testkit.Eventually(t, testkit.Patience, func() error { return synced(c) })
	c.has("a/new:80")
}
