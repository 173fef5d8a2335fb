package mcp

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/testkit"
)

// TestAMillionEntries: a list with more entries than a server may have is rejected whole, and what is below the bound
// cannot fill the log or the state.
func TestAMillionEntries(t *testing.T) {
	lines := &counted{}
	p := newPeer(t)
	c := follow(t, p.address, "", func(cfg *Config) { cfg.Log = slog.New(lines) })
	s := p.next()
	s.tell(entriesV1, serviceEntry("a/one"), serviceEntry("a/two"))
	s.rest(entriesV1)
	c.has("a/one:80 a/two:80")
	many := func(n int) (out []*anypb.Any) {
		for i := range n {
			out = append(out, &anypb.Any{Value: binary.BigEndian.AppendUint32(nil, uint32(i))})
		}
		return out
	}
	if answer := s.tell(entriesV1, many(1_000_000)...); !strings.Contains(answer.GetErrorDetail().GetMessage(), "1000000 entries") {
		t.Errorf("answered with %v, want a NACK", answer)
	}
	if found := c.Status().Problems; len(found) != 1 || found[0].Remedy == "" {
		t.Errorf("problems %v", found)
	}
	before := lines.n
	s.tell(entriesV1, many(10_000)...)
	if n := lines.n - before; n > maxLogged+1 {
		t.Errorf("%d lines of the log about one message", n)
	}
	if n := len(c.Status().Problems); n > maxProblems+1 {
		t.Errorf("%d problems", n)
	}
	c.has("a/one:80 a/two:80")
	s.tell(entriesV1, serviceEntry("a/two"))
	c.has("a/two:80")
}

// counted counts the lines of a log. One goroutine writes.
type counted struct{ n int }

// Enabled implements slog.Handler.
func (*counted) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (c *counted) Handle(context.Context, slog.Record) error {
	c.n++
	return nil
}

// WithAttrs implements slog.Handler.
func (c *counted) WithAttrs([]slog.Attr) slog.Handler { return c }

// WithGroup implements slog.Handler.
func (c *counted) WithGroup(string) slog.Handler { return c }

// TestAnEmptyListTooEarly: a server that has started anew answers with empty lists before it has read what it serves.
// Nothing goes before each version of the kind was answered.
func TestAnEmptyListTooEarly(t *testing.T) {
	for _, order := range [][]string{{entriesV1, entriesBeta, entriesAlpha}, {entriesAlpha, entriesBeta, entriesV1}} {
		p := newPeer(t)
		c := follow(t, p.address, "")
		s := p.next()
		s.tell(entriesV1, serviceEntry("a/one"))
		s.rest(entriesV1)
		c.has("a/one:80")
		events := c.count()
		s = c.reopen(p, s)
		s.tell(order[0])
		s.tell(order[1])
		s.tell(order[0], serviceEntry("a/one"))
		s.tell(order[2])
		if n := c.count() - events; n != 0 {
			t.Errorf("%v: %d changes of an object that was there all the time", order, n)
		}
		s.tell(order[0])
		c.has("")
	}
}

// TestConfusedNonces: lists count whatever nonce a server gives them, and each is answered with its own.
func TestConfusedNonces(t *testing.T) {
	p := newPeer(t)
	c := follow(t, p.address, "")
	s := p.next()
	s.tell(entriesV1, serviceEntry("a/zero"))
	s.rest(entriesV1)
	for i, nonce := range []string{"", "same", "same", "-1", strings.Repeat("n", 10_000), "same"} {
		name := fmt.Sprintf("a/e%d", i)
		m := &discovery.DiscoveryResponse{TypeUrl: entriesV1, Nonce: nonce, Resources: []*anypb.Any{serviceEntry(name)}}
		testkit.NoError(t, s.ads.Send(m))
		if answer := s.request(); answer.ResponseNonce != nonce || answer.TypeUrl != entriesV1 || answer.ErrorDetail != nil {
			t.Errorf("nonce %.20q: answered with %v", nonce, answer)
		}
		c.has(name + ":80")
	}
}
