package echo

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
)

// BehaviourHeader has the parameters where the path cannot, written like a query.
const BehaviourHeader = "x-scenario-echo"

// behaviour is what a request asks of the application.
type behaviour struct {
	codes   []weighted
	inTurn  bool
	delay   time.Duration
	headers [][2]string
	size    int
	cut     bool
}

type weighted struct {
	code   string
	weight float64
}

// behaviourOf reads the query of a request target, and text like a query. What cannot be read is taken as not said.
func behaviourOf(target, more string) behaviour {
	_, query, _ := strings.Cut(target, "?")
	values, _ := url.ParseQuery(query) //nolint:errcheck // what could be parsed is there
	if more != "" {
		added, _ := url.ParseQuery(more) //nolint:errcheck // as above
		for name, list := range added {
			values[name] = append(values[name], list...)
		}
	}
	var b behaviour
	if list := values.Get("codes"); list != "" {
		b.inTurn = true
		for entry := range strings.SplitSeq(list, ",") {
			code, weight, has := strings.Cut(entry, ":")
			w, err := strconv.ParseFloat(weight, 64)
			if has && err == nil {
				b.inTurn = false
			}
			b.codes = append(b.codes, weighted{strings.TrimSpace(code), w})
		}
	}
	b.delay, _ = time.ParseDuration(values.Get("delay"))
	b.size, _ = strconv.Atoi(values.Get("size"))
	b.cut, _ = strconv.ParseBool(values.Get("close"))
	for _, list := range values["headers"] {
		for entry := range strings.SplitSeq(list, ",") {
			if name, value, ok := strings.Cut(entry, ":"); ok {
				b.headers = append(b.headers, [2]string{strings.TrimSpace(name), strings.TrimSpace(value)})
			}
		}
	}
	return b
}

// code chooses: by weight, or the one whose turn it is, from 1; the last one stays.
func (b *behaviour) code(d *decks, turn func() int) string {
	switch {
	case len(b.codes) == 0:
		return ""
	case !b.inTurn:
		return b.codes[d.draw(b.codes)].code
	case len(b.codes) == 1:
		return b.codes[0].code
	}
	return b.codes[min(max(turn(), 1), len(b.codes))-1].code
}

// deck is how many choices by weight are as even together as can be; within it, chance decides.
const deck = 20

// decks choose by weight. It is not pure chance: of a hundred calls so many get each code that no scenario fails by bad
// luck.
type decks struct {
	mu sync.Mutex
	of map[string]*cards
}

// cards are the choices to come, and what could not be dealt yet of each.
type cards struct {
	next []int
	owed []float64
}

// draw is the index of a choice.
func (d *decks) draw(from []weighted) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := fmt.Sprint(from)
	if d.of == nil || len(d.of) > kept {
		d.of = map[string]*cards{}
	}
	c := d.of[key]
	if c == nil {
		c = &cards{owed: make([]float64, len(from))}
		d.of[key] = c
	}
	if len(c.next) == 0 {
		c.deal(from)
	}
	drawn := c.next[0]
	c.next = c.next[1:]
	return drawn
}

func (c *cards) deal(from []weighted) {
	sum := 0.0
	for _, w := range from {
		sum += w.weight
	}
	if sum <= 0 {
		c.next = []int{0}
		return
	}
	for i, w := range from {
		c.owed[i] += deck * w.weight / sum
	}
	for range deck {
		most := 0
		for i, owed := range c.owed {
			if owed > c.owed[most] {
				most = i
			}
		}
		c.owed[most]--
		c.next = append(c.next, most)
	}
	rand.Shuffle(len(c.next), func(i, j int) { c.next[i], c.next[j] = c.next[j], c.next[i] })
}

// httpStatus of a code that may also be gRPC's.
func httpStatus(code string) int {
	n, err := strconv.Atoi(code)
	if err != nil || n < 200 || n > 599 {
		return http.StatusOK
	}
	return n
}

// grpcStatus of a code, which may be gRPC's by name or number, or HTTP's.
func grpcStatus(code string) codes.Code {
	if code == "" {
		return codes.OK
	}
	if c, ok := CodeNamed(code); ok {
		return c
	}
	n, _ := strconv.Atoi(code)
	return cmp.Or(CodeOfHTTP(n), codes.OK)
}

// CodeNamed reads a gRPC code by name, in any spelling, or number.
func CodeNamed(text string) (codes.Code, bool) {
	plain := func(s string) string { return strings.ToUpper(strings.ReplaceAll(s, "_", "")) }
	for c := codes.OK; c <= codes.Unauthenticated; c++ {
		if text == strconv.Itoa(int(c)) || plain(text) == plain(c.String()) || plain(text) == "CANCELLED" && c == codes.Canceled {
			return c, true
		}
	}
	return codes.Unknown, false
}

// CodeOfHTTP is the gRPC code of an HTTP status, as gRPC's table has it (grpc/doc/http-grpc-status-mapping.md).
func CodeOfHTTP(status int) codes.Code {
	switch status {
	case http.StatusOK:
		return codes.OK
	case http.StatusBadRequest, http.StatusInternalServerError:
		return codes.Internal
	case http.StatusUnauthorized:
		return codes.Unauthenticated
	case http.StatusForbidden:
		return codes.PermissionDenied
	case http.StatusNotFound:
		return codes.Unimplemented
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return codes.Unavailable
	}
	return codes.Unknown
}
