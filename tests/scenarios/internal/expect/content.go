package expect

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"fairlead.dev/tests/internal/wait"
	"fairlead.dev/tests/scenarios/internal/caller"
	"fairlead.dev/tests/scenarios/internal/echo"
)

// differ tells that a value is not what it should be; empty texts expect nothing.
func differ(what, want, got string, equal func(want, got string) bool) string {
	if want == "" || equal(want, got) {
		return ""
	}
	return fmt.Sprintf("%s: want %q, got %q", what, want, got)
}

func same(want, got string) bool { return want == got }

// headers compares by name: a value, a regular expression between slashes, nil for a header that must not be there.
func headers(what string, want map[string]*string, got http.Header) string {
	for _, name := range slices.Sorted(maps.Keys(want)) {
		values := got.Values(name)
		text := strings.Join(values, ",")
		switch value := want[name]; {
		case value == nil && len(values) > 0:
			return fmt.Sprintf("%s.headers.%s: want none, got %q", what, name, text)
		case value == nil:
		case len(values) == 0:
			return fmt.Sprintf("%s.headers.%s: want %q, and it is not there", what, name, *value)
		case !Matches(*value, text) && !slices.ContainsFunc(values, func(v string) bool { return Matches(*value, v) }):
			return fmt.Sprintf("%s.headers.%s: want %q, got %q", what, name, *value, text)
		}
	}
	return ""
}

// first is the first text that says something.
func first(texts ...string) string {
	for _, text := range texts {
		if text != "" {
			return text
		}
	}
	return ""
}

// requests checks what the servers saw.
func (c *check) requests() {
	want := c.expect.Request
	if want == nil {
		return
	}
	c.each(c.results, func(r *caller.Result) string {
		s := c.reached[r.ID]
		if want.Method == http.MethodConnect { // what the proxy saw, not who is at the other end of the tunnel
			s = c.tunnel(r)
		}
		if s == nil {
			return fmt.Sprintf("request: it reached no server (%s)", outcome(r))
		}
		text := first(
			differ("request.path", want.Path, s.Path, same),
			differ("request.method", want.Method, s.Method, same),
			differ("request.host", want.Host, s.Host, same),
			differ("request.version", want.Version, s.Version, same),
			differ("request.body", want.Body, s.Body, Matches),
			differ("request.sourceIP", want.SourceIP, s.SourceIP, same),
			headers("request", want.Headers, s.Headers),
		)
		if text == "" && want.LocalPort != 0 && want.LocalPort != s.LocalPort {
			text = fmt.Sprintf("request.localPort: want %d, got %d", want.LocalPort, s.LocalPort)
		}
		if text == "" && want.TLS != nil {
			if s.TLS == nil {
				return "request.tls: the application saw no TLS of its own"
			}
			text = first(
				differ("request.tls.sni", want.TLS.SNI, s.TLS.SNI, same),
				differ("request.tls.alpn", want.TLS.ALPN, s.TLS.ALPN, same),
				differ("request.tls.version", want.TLS.Version, s.TLS.Version, same),
			)
		}
		return text
	})
}

// tunnel is the request for a tunnel that a forward proxy saw.
func (c *check) tunnel(r *caller.Result) *echo.Seen {
	for _, s := range c.journal[r.ID] {
		if s.Method == http.MethodConnect {
			return s
		}
	}
	return nil
}

// responses checks what the caller saw.
func (c *check) responses() {
	if want := c.expect.Response; want != nil {
		c.each(c.results, func(r *caller.Result) string {
			return first(
				headers("response", want.Headers, r.Header),
				differ("response.body", want.Body, string(r.Body), Matches),
				differ("response.version", strings.TrimPrefix(want.Version, "HTTP/"), r.Version, same),
				differ("response.location", want.Location, r.Header.Get("Location"), Matches),
			)
		})
	}
	// A proxy's timers count whole milliseconds of a clock that it reads once per turn of its loop.
	const early = 10 * time.Millisecond
	if want := c.expect.Duration; want != nil {
		c.each(c.results, func(r *caller.Result) string {
			switch {
			case want.Min != nil && r.Duration+early < want.Min.D():
				return fmt.Sprintf("duration: want at least %s, got %s", want.Min.D(), r.Duration.Round(time.Millisecond))
			case want.Max != nil && r.Duration > want.Max.D():
				return fmt.Sprintf("duration: want at most %s, got %s", want.Max.D(), r.Duration.Round(time.Millisecond))
			}
			return ""
		})
	}
	if want := c.expect.Certificate; want != nil {
		c.each(c.results, func(r *caller.Result) string {
			if len(r.Certificates) == 0 {
				return fmt.Sprintf("certificate: none was shown (%s)", outcome(r))
			}
			shown := r.Certificates[0]
			var uris []string
			for _, u := range shown.URIs {
				uris = append(uris, u.String())
			}
			text := first(
				differ("certificate.issuer", want.Issuer, shown.Issuer.CommonName, Matches),
				differ("certificate.uri", want.URI, strings.Join(uris, ","), Matches),
			)
			if text == "" && want.DNSNames != nil &&
				!slices.Equal(slices.Sorted(slices.Values(want.DNSNames)), slices.Sorted(slices.Values(shown.DNSNames))) {
				text = fmt.Sprintf("certificate.dnsNames: want %v, got %v", want.DNSNames, shown.DNSNames)
			}
			return text
		})
	}
	if want := c.expect.Addresses; want != nil {
		c.each(c.results, func(r *caller.Result) string {
			if !slices.Equal(slices.Sorted(slices.Values(want)), slices.Sorted(slices.Values(r.Addresses))) {
				return fmt.Sprintf("addresses: want %v, got %v", want, r.Addresses)
			}
			return ""
		})
	}
}

// connections counts the connections of applications that were new with this call.
func (c *check) connections() {
	want := c.expect.NewConnections
	if want == nil {
		return
	}
	type connection struct {
		workload string
		number   int
	}
	fresh := map[connection]bool{}
	by := map[string]int{}
	for _, list := range c.journal {
		for _, s := range list {
			key := connection{s.Workload, s.Connection}
			if !s.Accepted.Before(c.began) && !fresh[key] {
				fresh[key] = true
				by[s.Workload]++
			}
		}
	}
	if !want.Holds(len(fresh)) {
		c.fail(nil, "newConnections: want %s, got %d (%v)", want, len(fresh), by)
	}
}

// How long the servers may take to have seen everything. As with all waiting here, only the pauses between looks count:
// a machine that stands still meanwhile has not looked.
const (
	copyTime    = 3 * time.Second
	attemptTime = time.Second
	// quiet is how long nothing more must come where nothing may.
	quiet = 200 * time.Millisecond
	again = 20 * time.Millisecond
)

// copies checks how many requests came to the servers, waiting for those that are on their way.
func (c *check) copies(ctx context.Context) {
	if c.expect.Attempts == nil && c.expect.Mirrored == nil {
		return
	}
	limit, settle := attemptTime, false
	if c.expect.Mirrored != nil {
		limit = copyTime
		for _, share := range c.expect.Mirrored {
			settle = settle || share < 100
		}
	}
	before, example := c.wrong, c.example
	for waited := time.Duration(0); ; waited += again {
		c.wrong, c.example = before[:len(before):len(before)], example
		c.attempts()
		c.mirrored()
		holds := len(c.wrong) == len(before)
		switch {
		case holds && settle:
			settle = false
			if wait.Pause(ctx, quiet) != nil {
				return
			}
		case holds || waited >= limit || wait.Pause(ctx, again) != nil:
			return
		}
		if err := c.read(ctx); err != nil {
			c.fail(nil, "read what the servers saw: %v", err)
			return
		}
	}
}

// attempts counts the requests of each call that are no copies.
func (c *check) attempts() {
	want := c.expect.Attempts
	if want == nil {
		return
	}
	c.each(c.results, func(r *caller.Result) string {
		count := 0
		for _, s := range c.journal[r.ID] {
			if !c.isCopy(r, s) && s.App != "CONNECT" {
				count++
			}
		}
		if !want.Holds(count) {
			return fmt.Sprintf("attempts: want %s, and %d requests reached the servers%s", want, count, whereTo(c.journal[r.ID]))
		}
		return ""
	})
}

func whereTo(seen []*echo.Seen) string {
	if len(seen) == 0 {
		return ""
	}
	var names []string
	for _, s := range seen {
		names = append(names, fmt.Sprintf("%s (%d)", s.Workload, s.Status))
	}
	return ": " + strings.Join(names, ", ")
}

// isCopy tells a mirrored request: by its host, or because it came to a workload that copies are expected at and is not
// what was answered.
func (c *check) isCopy(r *caller.Result, s *echo.Seen) bool {
	if s.Shadow() {
		return true
	}
	_, expected := c.expect.Mirrored[s.Workload]
	answered := c.reached[r.ID]
	return expected && (answered == nil || answered.Workload != s.Workload || answered.Number != s.Number)
}

// mirrored counts the calls that workloads got copies of.
func (c *check) mirrored() {
	for _, name := range slices.Sorted(maps.Keys(c.expect.Mirrored)) {
		got := 0
		for _, r := range c.results {
			if slices.ContainsFunc(c.journal[r.ID], func(s *echo.Seen) bool { return s.Workload == name && c.isCopy(r, s) }) {
				got++
			}
		}
		c.share("mirrored", name, c.expect.Mirrored[name], got, len(c.results))
	}
}
