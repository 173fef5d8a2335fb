package sts

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"fairlead.dev/pkg/clock"
)

const (
	// maxTokens bounds the tokens that are kept.
	maxTokens = 64
	// spare is how long before its expiry a token is not given out any more; for one of a short life it is a half of
	// that.
	spare = 5 * time.Minute
	// exchangeTimeout bounds an exchange, retries included.
	exchangeTimeout = 30 * time.Second
)

// cache keeps tokens of a Plugin, and makes one exchange at a time for equal requests. It is safe for concurrent use.
type cache struct {
	plugin  Plugin
	clock   clock.Clock
	flights singleflight.Group

	mu   sync.Mutex
	held map[string]heldToken
}

type heldToken struct {
	Token
	// until is when it is not given out any more.
	until time.Time
}

func newCache(p Plugin, c clock.Clock) *cache {
	return &cache{plugin: p, clock: c, held: map[string]heldToken{}}
}

// key identifies a request without revealing its token.
func key(r Request) string {
	return fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%q %q %q", r.SubjectToken, r.Audience, r.Scope)))
}

func (c *cache) get(ctx context.Context, r Request) (Token, error) {
	k := key(r)
	if t, ok := c.find(k); ok {
		return t, nil
	}
	// The exchange goes on for those who wait for it, too, if this caller ends.
	result := c.flights.DoChan(k, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), exchangeTimeout)
		defer cancel()
		t, err := c.plugin.Exchange(ctx, r)
		if err == nil {
			c.keep(k, t)
		}
		return t, err
	})
	select {
	case <-ctx.Done():
		return Token{}, ctx.Err()
	case got := <-result:
		if got.Err != nil {
			return Token{}, got.Err
		}
		return got.Val.(Token), nil
	}
}

func (c *cache) find(k string) (Token, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, ok := c.held[k]
	return t.Token, ok && c.clock.Now().Before(t.until)
}

// keep keeps a token. It makes room by those that are not given out any more, and if that is none by the one that ends
// first.
func (c *cache) keep(k string, t Token) {
	now := c.clock.Now()
	life := t.Expiry.Sub(now)
	if life <= 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.held, func(_ string, h heldToken) bool { return !now.Before(h.until) })
	if len(c.held) >= maxTokens {
		first := ""
		for other, h := range c.held {
			if first == "" || h.until.Before(c.held[first].until) {
				first = other
			}
		}
		delete(c.held, first)
	}
	c.held[k] = heldToken{t, now.Add(max(life-spare, life/2))}
}
