package suite

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/tests/bench/internal/wire"
)

// A mark is a text by which a change is found again in what proxies receive: it begins with markPrefix and ends with a
// dot, or is the address of an endpoint in 100.64.0.0/10, which has a number.
const markPrefix = "mark-"

// markedAddress is the address with number n, of at most 2^22.
func markedAddress(n int) string {
	return fmt.Sprintf("100.%d.%d.%d", 64+n>>16, n>>8&0xff, n&0xff)
}

// markedNumber is the number of a marked address; false if it is none.
func markedNumber(address string) (int, bool) {
	rest, ok := strings.CutPrefix(address, "100.")
	if !ok {
		return 0, false
	}
	n := 0
	for part := range strings.SplitSeq(rest, ".") {
		b, err := strconv.Atoi(part)
		if err != nil {
			return 0, false
		}
		n = n<<8 | b
	}
	return n - 64<<16, true
}

// noted is what a resource says that a benchmark looks for.
type noted struct {
	marks []string
	// addresses of a ClusterLoadAssignment, sorted; newest is the highest number of the marked ones, -1 if there is
	// none.
	addresses []string
	newest    int
}

// note reads a resource.
func note(typeURL, _ string, body []byte) any {
	n := &noted{newest: -1}
	if typeURL != wire.Endpoint {
		for rest := body; ; {
			_, after, ok := bytes.Cut(rest, []byte(markPrefix))
			if !ok {
				return n
			}
			if end := bytes.IndexByte(after, '.'); end >= 0 && end < 40 {
				if mark := markPrefix + string(after[:end+1]); !slices.Contains(n.marks, mark) {
					n.marks = append(n.marks, mark)
				}
			}
			rest = after
		}
	}
	var m endpoint.ClusterLoadAssignment
	if proto.Unmarshal(body, &m) != nil {
		return n // it has no endpoints then, which the comparison with the API finds
	}
	for _, locality := range m.GetEndpoints() {
		for _, e := range locality.GetLbEndpoints() {
			at := e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress()
			n.addresses = append(n.addresses, at)
			if number, ok := markedNumber(at); ok {
				n.newest = max(n.newest, number)
				n.marks = append(n.marks, at)
			}
		}
	}
	slices.Sort(n.addresses)
	return n
}

// seen is what a fleet's proxies have acknowledged.
type seen struct {
	mu sync.Mutex
	// held are the endpoints that each proxy has, by cluster.
	held []map[string]cluster
	// expected is a change under way.
	expected *expected
	// storm, if not nil, measures changes of endpoints that overlap.
	storm *storm
}

type cluster struct {
	host  string
	noted *noted
}

// expected is a change that every proxy has to acknowledge: in one of the types of each stage.
type expected struct {
	mark   string
	stages [][]string
	at     time.Time
	// got has a bit for each stage that a proxy has acknowledged.
	got    []int
	left   int
	delays []time.Duration
	done   chan struct{}
}

func newSeen(proxies int) *seen {
	s := &seen{held: make([]map[string]cluster, proxies)}
	for i := range s.held {
		s.held[i] = map[string]cluster{}
	}
	return s
}

// acknowledged is what proxy.Fleet.Observe calls.
func (s *seen) acknowledged(number int, c *wire.Content, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range c.Removed {
		delete(s.held[number], name)
	}
	for i, r := range c.Resources {
		n, ok := c.Notes[i].(*noted)
		if !ok {
			continue // it has no body
		}
		if c.Type == wire.Endpoint {
			s.held[number][r.Name] = cluster{c.Hosts[i], n}
			if s.storm != nil {
				s.storm.acknowledged(number, c.Hosts[i], n.newest, at)
			}
		}
		if s.expected != nil && slices.Contains(n.marks, s.expected.mark) {
			s.expected.acknowledged(number, c.Type, at)
		}
	}
}

func (e *expected) acknowledged(number int, typeURL string, at time.Time) {
	all := 1<<len(e.stages) - 1
	before := e.got[number]
	for i, types := range e.stages {
		if slices.Contains(types, typeURL) {
			e.got[number] |= 1 << i
		}
	}
	if before == all || e.got[number] != all {
		return
	}
	e.delays = append(e.delays, at.Sub(e.at))
	if e.left--; e.left == 0 {
		close(e.done)
	}
}

// changeWithin is how long a change may take to all proxies.
const changeWithin = time.Minute

// change makes a change and waits until all proxies have acknowledged its mark; it returns how long each took.
func (s *seen) change(ctx context.Context, mark string, stages [][]string, do func(context.Context) error) ([]time.Duration, error) {
	return s.changeOf(ctx, len(s.held), mark, stages, do)
}

// changeOf is change that so many of the proxies have to acknowledge.
func (s *seen) changeOf(ctx context.Context, proxies int, mark string, stages [][]string, do func(context.Context) error) (
	[]time.Duration, error,
) {
	e := &expected{mark: mark, stages: stages, got: make([]int, len(s.held)), left: proxies, done: make(chan struct{}), at: time.Now()}
	s.mu.Lock()
	s.expected = e
	s.mu.Unlock()
	if err := do(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, changeWithin)
	defer cancel()
	select {
	case <-e.done:
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		return nil, fmt.Errorf("%d of %d proxies have not acknowledged %s: %w", e.left, proxies, mark, ctx.Err())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expected = nil
	return e.delays, nil
}

// differing compares the endpoints that proxies have with those of the Services in an API, by host; sees tells which of
// these a proxy has to know. It returns the number of differences and one of them in words.
func (s *seen) differing(api map[string][]string, sees func(number int, host string) bool) (count int, example string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for number, clusters := range s.held {
		known := map[string]bool{}
		for name, c := range clusters {
			want, ok := api[c.host]
			if !ok {
				continue
			}
			known[c.host] = true
			if !slices.Equal(want, c.noted.addresses) {
				count++
				example = fmt.Sprintf("proxy %d has %v in %s, the API %v", number, c.noted.addresses, name, want)
			}
		}
		for host := range api {
			if sees(number, host) && !known[host] {
				count++
				example = fmt.Sprintf("proxy %d has no endpoints of %s", number, host)
			}
		}
	}
	return count, example
}
