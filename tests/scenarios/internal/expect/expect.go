// Package expect compares what came of a call with what a scenario expects of it, and says in words what did not hold.
package expect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"fairlead.dev/tests/scenarios/internal/caller"
	"fairlead.dev/tests/scenarios/internal/echo"
	"fairlead.dev/tests/scenarios/internal/format"
	"fairlead.dev/tests/scenarios/internal/wire"
)

// Server is a workload whose application answers calls.
type Server struct {
	// Identity is its SPIFFE URI.
	Identity string
	// HasProxy tells whether an Envoy takes its connections.
	HasProxy bool
	IPs      []netip.Addr
	Journal  *echo.Journal
	// Sniffer and Log may be missing, with what they tell.
	Sniffer *wire.Sniffer
	Log     wire.AccessLog
}

// Scene is what is known of a call besides its results.
type Scene struct {
	Call *format.Call
	// From are the caller's addresses; with Via, those of the workload that was dialled instead.
	From []netip.Addr
	// Servers are all whose applications run, by name.
	Servers map[string]*Server

	began time.Time
	logs  map[string]int64
}

// Begin notes how things are before the call.
func (s *Scene) Begin() {
	s.logs = map[string]int64{}
	for name, server := range s.Servers {
		s.logs[name] = server.Log.End()
	}
	s.began = time.Now()
}

// check is one comparison.
type check struct {
	*Scene
	expect  *format.Expect
	results []*caller.Result
	wrong   []string
	// example is a result for which something does not hold.
	example *caller.Result

	// logWaited is how long it was waited for lines of access logs.
	logWaited time.Duration

	// journal has the requests of this call that came to each server, by id.
	journal map[string][]*echo.Seen
	// reached has, by id, what a server saw of the call: the request that was answered, else the last one.
	reached map[string]*echo.Seen
}

// errUnmet begins every failure.
var errUnmet = errors.New("what was expected did not come")

// Check tells what does not hold; nil if all does.
func (s *Scene) Check(ctx context.Context, results []*caller.Result) error {
	c := &check{Scene: s, expect: &s.Call.Expect, results: results}
	if len(results) == 0 {
		return fmt.Errorf("%w: no call was made", errUnmet)
	}
	if want := s.Call.Count; want > len(results) {
		c.fail(nil, "only %d of %d calls were made, because the first ones timed out", len(results), want)
	}
	if err := c.read(ctx); err != nil {
		return fmt.Errorf("read what the servers saw: %w", err)
	}
	c.outcome()
	c.shares()
	c.requests()
	c.responses()
	c.connections()
	c.facts(ctx)
	c.copies(ctx)
	c.told()
	if len(c.wrong) == 0 {
		return nil
	}
	return fmt.Errorf("%w:\n  - %s\nseen:\n%s", errUnmet, strings.Join(c.wrong, "\n  - "), c.summary())
}

// told refuses what cannot be checked yet: that is no pass.
func (c *check) told() {
	for _, told := range []struct {
		name string
		n    int
	}{{"metrics", len(c.expect.Metrics)}, {"accessLog", len(c.expect.AccessLog)}, {"spans", len(c.expect.Spans)}} {
		if told.n > 0 {
			c.fail(nil, "%s: the runner cannot check it yet; it comes with the telemetry APIs", told.name)
		}
	}
}

// fail notes what does not hold, and a result that shows it.
func (c *check) fail(r *caller.Result, text string, args ...any) {
	if c.example == nil && r != nil {
		c.example = r
	}
	c.wrong = append(c.wrong, fmt.Sprintf(text, args...))
}

// each checks every result, and tells the first one that does not pass and how many there are.
func (c *check) each(results []*caller.Result, test func(*caller.Result) string) {
	count, first := 0, ""
	var bad *caller.Result
	for _, r := range results {
		if text := test(r); text != "" {
			if count++; count == 1 {
				bad, first = r, text
			}
		}
	}
	switch {
	case count == 1 && len(results) == 1:
		c.fail(bad, "%s", first)
	case count > 0:
		c.fail(bad, "%s (%d of %d calls; this is call %s)", first, count, len(results), bad.ID)
	}
}

// read gets the journals, and finds for each result what a server saw.
func (c *check) read(ctx context.Context) error {
	ids := map[string]bool{}
	for _, r := range c.results {
		ids[r.ID] = true
	}
	c.journal, c.reached = map[string][]*echo.Seen{}, map[string]*echo.Seen{}
	for _, name := range slices.Sorted(maps.Keys(c.Servers)) {
		seen, err := c.Servers[name].Journal.Since(ctx, c.began)
		if err != nil {
			continue // an application that was stopped meanwhile tells nothing
		}
		for _, s := range seen {
			if ids[s.Call] {
				c.journal[s.Call] = append(c.journal[s.Call], s)
			}
		}
	}
	for _, r := range c.results {
		c.reached[r.ID] = r.Seen
		for _, s := range c.journal[r.ID] {
			if known := c.reached[r.ID]; r.Seen == nil && !s.Shadow() && s.App != format.AppConnect && (known == nil || s.Time.After(known.Time)) {
				c.reached[r.ID] = s
			}
		}
	}
	return nil
}

// outcome checks errors and statuses.
func (c *check) outcome() {
	e := c.expect
	if e.Error != "" {
		c.each(c.results, func(r *caller.Result) string {
			switch {
			case r.Err == nil:
				return fmt.Sprintf("error: want %s, and there was an answer, %s", e.Error, outcome(r))
			case e.Error != "any" && !r.Failed(e.Error):
				return fmt.Sprintf("error: want %s, got %s: %v", e.Error, strings.Join(r.Classes, " and "), r.Err)
			}
			return ""
		})
	}
	if e.GRPCStatus != nil {
		c.grpc(string(*e.GRPCStatus))
	}
	switch {
	case e.Error == "" && e.GRPCStatus == nil && (e.Status == nil || e.Status.Shares == nil):
		c.each(c.results, func(r *caller.Result) string {
			if r.Err != nil {
				return fmt.Sprintf("want an answer, got an error, %s: %v", strings.Join(r.Classes, " and "), r.Err)
			}
			return ""
		})
	}
	switch {
	case e.Status == nil:
	case e.Status.Shares != nil:
		got := map[int]int{}
		for _, r := range c.results {
			got[r.Status]++
		}
		for _, code := range slices.Sorted(maps.Keys(e.Status.Shares)) {
			c.share("status", strconv.Itoa(code), e.Status.Shares[code], got[code], len(c.results))
		}
	default:
		c.each(c.results, func(r *caller.Result) string {
			if r.Err == nil && !slices.Contains(e.Status.OneOf, r.Status) {
				return fmt.Sprintf("status: want %s, got %d", e.Status, r.Status)
			}
			return ""
		})
	}
}

func (c *check) grpc(want string) {
	code, known := echo.CodeNamed(want)
	if !known {
		c.fail(nil, "grpcStatus: there is no code %q", want)
		return
	}
	c.each(c.results, func(r *caller.Result) string {
		switch {
		case r.GRPC == nil:
			return fmt.Sprintf("grpcStatus: want %s, and the call was not gRPC", code)
		case *r.GRPC != code:
			return fmt.Sprintf("grpcStatus: want %s, got %s %q (%s)", code, *r.GRPC, r.GRPCMessage, outcome(r))
		}
		return ""
	})
}

// share compares a percentage.
func (c *check) share(what, of string, want float64, got, total int) {
	seen := 0.0
	if total > 0 {
		seen = 100 * float64(got) / float64(total)
	}
	tolerance := c.expect.Share()
	if want == 0 {
		tolerance = 0 // never
	}
	if total == 0 || seen < want-tolerance-1e-9 || seen > want+tolerance+1e-9 {
		c.fail(c.of(of), "%s: want %s for %g %% (± %g), got %.1f %% (%d of %d)", what, of, want, tolerance, seen, got, total)
	}
}

// of is a result that a workload answered, or that had a status.
func (c *check) of(what string) *caller.Result {
	for _, r := range c.results {
		if c.answerer(r) == what || strconv.Itoa(r.Status) == what {
			return r
		}
	}
	return nil
}

// answerer is the workload whose application answered; empty if a proxy did, or nobody.
func (c *check) answerer(r *caller.Result) string {
	switch {
	case r.Seen != nil:
		return r.Seen.Workload
	case r.Err == nil && c.tunnel(r) != nil:
		return c.tunnel(r).Workload
	case r.Err != nil || c.reached[r.ID] == nil:
		return ""
	}
	// An answer that has no room for what was seen is the application's if it has the application's status.
	seen := c.reached[r.ID]
	if r.GRPC != nil && seen.Status == int(*r.GRPC) || r.GRPC == nil && seen.Status == r.Status || echo.IsGRPC(seen.Headers) {
		return seen.Workload
	}
	return ""
}

// shares checks who answered.
func (c *check) shares() {
	answers, got := 0, map[string]int{}
	for _, r := range c.results {
		if r.Err == nil {
			answers++
			got[c.answerer(r)]++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.expect.From)) {
		c.share("from", name, c.expect.From[name], got[name], answers)
	}
	if c.expect.Sticky == nil {
		return
	}
	if _, somebodyElse := got[""]; somebodyElse || answers == 0 {
		c.fail(c.of(""), "sticky: some answers are of no application")
	} else if one := len(got) == 1; one != *c.expect.Sticky {
		c.fail(nil, "sticky: want %t, and answers came from %s", *c.expect.Sticky, strings.Join(slices.Sorted(maps.Keys(got)), ", "))
	}
}

// Matches compares a value with what is expected of it: a regular expression between slashes, which may match anywhere,
// or the value itself.
func Matches(want, got string) bool {
	if inner, ok := strings.CutPrefix(want, "/"); ok {
		if inner, ok = strings.CutSuffix(inner, "/"); ok {
			if re, err := regexp.Compile(inner); err == nil {
				return re.MatchString(got)
			}
		}
	}
	return want == got
}
