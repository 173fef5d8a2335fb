package metrics

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// maxScrapes bounds the scrapes that run at once, maxPerAddress those of one remote address.
	maxScrapes    = 4
	maxPerAddress = 2
	// maxUnread bounds the time that all writes of one scrape wait for its reader.
	maxUnread = 5 * time.Second
	// unread is how long a write waits for its reader before another scraper may take the place of the scrape.
	unread = time.Second
)

// errSlow ends a scrape whose scraper does not read.
var errSlow = errors.New("the scraper reads too slowly")

// scrapers are those whose scrapes run, the oldest first.
type scrapers struct {
	mu      sync.Mutex
	running []*scraper
}

// admit takes a scraper in. If all places are taken, it gets that of one that does not read. leave must follow, unless
// there is an error.
func (s *scrapers) admit(w http.ResponseWriter, r *http.Request, timeout time.Duration) (*scraper, error) {
	from, _ := netip.ParseAddrPort(r.RemoteAddr) // an error means a recorder of a test
	n := &scraper{ResponseWriter: w, control: http.NewResponseController(w), from: from.Addr().Unmap(), until: time.Now().Add(timeout),
		left: maxUnread}
	s.mu.Lock()
	defer s.mu.Unlock()
	own := 0
	for _, other := range s.running {
		if other.from == n.from {
			own++
		}
	}
	if own >= maxPerAddress {
		return nil, fmt.Errorf("%d scrapes of %s run already", own, n.from)
	}
	if len(s.running) >= maxScrapes {
		slow := slices.IndexFunc(s.running, (*scraper).end)
		if slow < 0 {
			return nil, fmt.Errorf("%d scrapes run already", maxScrapes)
		}
		s.running = slices.Delete(s.running, slow, slow+1)
	}
	s.running = append(s.running, n)
	_ = n.control.SetReadDeadline(time.Time{}) // as below
	return n, nil
}

// leave ends what admit began.
func (s *scrapers) leave(n *scraper) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = slices.DeleteFunc(s.running, func(other *scraper) bool { return other == n })
}

// scraper is a ResponseWriter that waits for a slow reader only for a short time.
type scraper struct {
	http.ResponseWriter
	control *http.ResponseController
	from    netip.Addr
	until   time.Time

	mu sync.Mutex
	// left is how long writes may still wait, since when the present one began; zero if there is none.
	left  time.Duration
	since time.Time
	ended bool
}

// Write implements io.Writer.
func (s *scraper) Write(p []byte) (int, error) {
	s.mu.Lock()
	if s.ended || s.left <= 0 {
		s.mu.Unlock()
		return 0, errSlow
	}
	s.since = time.Now()
	deadline := s.since.Add(s.left)
	if s.until.Before(deadline) {
		deadline = s.until
	}
	_ = s.control.SetWriteDeadline(deadline) // an error means a recorder of a test
	s.mu.Unlock()
	n, err := s.ResponseWriter.Write(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left -= time.Since(s.since)
	s.since = time.Time{}
	return n, err
}

// end ends a scrape whose reader keeps it waiting, and reports whether it is one.
func (s *scraper) end() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since.IsZero() || time.Since(s.since) < unread {
		return false
	}
	s.ended = true
	_ = s.control.SetWriteDeadline(time.Now())
	return true
}
