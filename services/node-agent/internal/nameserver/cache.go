package nameserver

import (
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"

	"fairlead.dev/pkg/clock"
)

const (
	// maxCached bounds the number of answers, maxCachedBytes their memory, and maxAnswerBytes the memory of one. A
	// workload calls a few hundred names at most, each with an answer of a few records.
	maxCached      = 1024
	maxCachedBytes = 4 << 20
	maxAnswerBytes = 64 << 10
	// maxAge bounds how long an answer is cached, and the TTLs in it.
	maxAge        = 5 * time.Minute
	maxAgeSeconds = uint32(maxAge / time.Second)
	// entryBytes and recordBytes are the memory of an entry and of a record besides their encoded bytes.
	entryBytes, recordBytes = 512, 160
)

// key identifies the upstream answers that queries can share.
type key struct {
	name        string
	kind, class uint16
	// secure, unchecked and authentic are the query's DO, CD and AD bits (DNSSEC).
	secure, unchecked, authentic bool
}

func keyOf(query *dns.Msg) key {
	q := query.Question[0]
	k := key{name: dns.CanonicalName(q.Name), kind: q.Qtype, class: q.Qclass, unchecked: query.CheckingDisabled,
		authentic: query.AuthenticatedData}
	if opt := query.IsEdns0(); opt != nil {
		k.secure = opt.Do()
	}
	return k
}

// cache holds upstream answers for their TTL. It is safe for concurrent use.
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

// get returns a copy of an answer, with its TTLs reduced by its age, or nil.
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

// put stores an answer, unless it may not be cached or is too large. It makes room by dropping other answers, expired
// ones if it finds some.
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
		for other, e := range c.entries { // a few at random, since looking at all is slow
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

// drop removes an answer, if it is there. The caller holds mu.
func (c *cache) drop(k key) {
	c.bytes -= c.entries[k].bytes
	delete(c.entries, k)
}

// costOf estimates the memory of an answer.
func costOf(answer *dns.Msg) int {
	return entryBytes + answer.Len() + recordBytes*(len(answer.Answer)+len(answer.Ns)+len(answer.Extra))
}

// lifetime is the shortest TTL of an answer's records, for a negative answer that of its SOA record (RFC 2308), and 0
// for an answer that may not be cached.
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
