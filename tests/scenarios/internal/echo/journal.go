package echo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"fairlead.dev/tests/scenarios/internal/beside"
)

// kept is how many requests and counts an application remembers.
const kept = 20000

// journal remembers the requests that came, in order.
type journal struct {
	mu     sync.Mutex
	seen   []*Seen
	number int
	// calls is the file that outlives the application, with a line for each request; nil for none.
	calls *os.File
}

// add numbers and keeps a request; the caller does not change it afterwards.
func (j *journal) add(s *Seen) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.calls != nil {
		_, _ = j.calls.WriteString(s.Call + "\n") // who counts the lines finds that one is missing
	}
	j.number++
	s.Number, s.Time = j.number, time.Now()
	if len(j.seen) >= 2*kept {
		j.seen = slices.Clone(j.seen[kept:])
	}
	j.seen = append(j.seen, s)
}

// since has the requests that came at or after a time.
func (j *journal) since(from time.Time) []*Seen {
	j.mu.Lock()
	defer j.mu.Unlock()
	at, _ := slices.BinarySearchFunc(j.seen, from, func(s *Seen, t time.Time) int { return s.Time.Compare(t) })
	return slices.Clone(j.seen[at:])
}

// told serves what the application remembers: GET /?since=UNIXNANOSECONDS has its requests, and GET /collected with the
// same parameter what proxies have told it.
func (s *Server) told() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", sinceOf(s.journal.since))
	mux.HandleFunc("/collected", sinceOf(s.collected.Since))
	return mux
}

func sinceOf[T any](list func(from time.Time) []T) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		nanos, err := strconv.ParseInt(r.URL.Query().Get("since"), 10, 64)
		if err != nil {
			http.Error(w, "since: want a time in nanoseconds", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list(time.Unix(0, nanos)))
	}
}

// Journal reads what an application remembers.
type Journal struct {
	client *http.Client
}

// NewJournal asks at a unix socket.
func NewJournal(socket string) *Journal {
	return &Journal{client: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
		DisableKeepAlives: true,
	}}}
}

var errJournal = errors.New("the journal does not answer")

// Since has the requests that came at or after a time, in order.
func (j *Journal) Since(ctx context.Context, from time.Time) ([]*Seen, error) {
	var seen []*Seen
	err := j.read(ctx, "/", from, &seen)
	return seen, err
}

// Collected has what proxies have told the application at or after a time, in order.
func (j *Journal) Collected(ctx context.Context, from time.Time) ([]beside.Message, error) {
	var all []beside.Message
	err := j.read(ctx, "/collected", from, &all)
	return all, err
}

func (j *Journal) read(ctx context.Context, path string, from time.Time, into any) error {
	u := url.URL{Scheme: "http", Host: "journal", Path: path, RawQuery: "since=" + strconv.FormatInt(from.UnixNano(), 10)}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	resp, err := j.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: status %d", errJournal, resp.StatusCode)
	}
	return json.NewDecoder(resp.Body).Decode(into)
}
