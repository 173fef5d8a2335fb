package nameserver

import (
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"

	"fairlead.dev/pkg/clock"
)

const (
	// maxCached bounds the answers that are kept, maxCachedBytes what they take in memory, and maxAnswerBytes what one
	// of them does: a workload calls a few hundred names at most, each with an answer of a few records.
	maxCached      = 1024
	maxCachedBytes = 4 << 20
	maxAnswerBytes = 64 << 10
	// maxAge bounds how long, and the TTL that clients are told.
	maxAge        = 5 * time.Minute
	maxAgeSeconds = uint32(maxAge / time.Second)
	// entryBytes and recordBytes are what an entry and a record take besides their bytes on the wire.
	entryBytes, recordBytes = 512, 160
)

// key is what an upstream answer depends on.
type key struct {
	name        string
	kind, class uint16
	// secure is whether the asker wants DNSSEC's records, unchecked whether it checks them itself, authentic whether it
	// wants to know of a check.
	secure, unchecked, authentic bool
}

// keyOf is a query's key.
func keyOf(query *dns.Msg) key {
	q := query.Question[0]
	k := key{name: dns.CanonicalName(q.Name), kind: q.Qtype, class: q.Qclass, unchecked: query.CheckingDisabled, authentic: query.AuthenticatedData}
	if opt := query.IsEdns0(); opt != nil {
		k.secure = opt.Do()
	}
	return k
}

// cache keeps upstream answers for as long as they say.
type cache struct {
	clock clock.Clock

	mu      sync.Mutex
	entries map[key]entry
	bytes   int
}

type entry struct {
	answer        *dns.Msg
	bytes         int
	stored, until time.Time
}

func newCache(c clock.Clock) *cache { return &cache{clock: c, entries: map[key]entry{}} }

// get gives an answer with what is left of its TTLs, for the caller to change, or nil.
func (c *cache) get(k key) *dns.Msg {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	e, ok := c.entries[k]
	if !ok {
		return nil
	}
	if !now.Before(e.until) {
		c.drop(k)
		return nil
	}
	out, passed := e.answer.Copy(), uint32(now.Sub(e.stored)/time.Second)
	for _, r := range slices.Concat(out.Answer, out.Ns, out.Extra) {
		if h := r.Header(); h.Rrtype != dns.TypeOPT {
			h.Ttl -= min(passed, h.Ttl)
		}
	}
	return out
}

// put keeps an answer, unless it is one that must not be. Where there is no room others are dropped, those that are
// over if there are such.
func (c *cache) put(k key, answer *dns.Msg) {
	age, bytes := lifetime(answer), costOf(answer)
	if age <= 0 || bytes > maxAnswerBytes {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	c.drop(k)
	for len(c.entries) >= maxCached || c.bytes+bytes > maxCachedBytes {
		var victim key
		looked := 0
		for other, e := range c.entries { // a few at random: all would be slow for every answer
			victim = other
			if looked++; !now.Before(e.until) || looked == 16 {
				break
			}
		}
		c.drop(victim)
	}
	c.entries[k] = entry{answer: answer.Copy(), bytes: bytes, stored: now, until: now.Add(age)}
	c.bytes += bytes
}

// drop forgets an answer, if it is there. The caller holds the lock.
func (c *cache) drop(k key) {
	c.bytes -= c.entries[k].bytes
	delete(c.entries, k)
}

// costOf is what an answer takes in memory.
func costOf(answer *dns.Msg) int {
	return entryBytes + answer.Len() + recordBytes*(len(answer.Answer)+len(answer.Ns)+len(answer.Extra))
}

// lifetime is the least TTL of an answer's records, for a negative answer of its SOA record (RFC 2308); 0 for what is not to be kept.
func lifetime(answer *dns.Msg) time.Duration {
	if answer.Truncated || answer.Rcode != dns.RcodeSuccess && answer.Rcode != dns.RcodeNameError {
		return 0
	}
	least := maxAgeSeconds
	authority := false
	for _, r := range slices.Concat(answer.Answer, answer.Ns) {
		least = min(least, r.Header().Ttl)
		if soa, ok := r.(*dns.SOA); ok {
			least = min(least, soa.Minttl)
			authority = true
		}
	}
	if len(answer.Answer) == 0 && !authority {
		return 0
	}
	return time.Duration(least) * time.Second
}
