package decisions

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/gate"
	"fairlead.dev/tests/internal/policygen"
)

// side makes the filters of a set's workload.
type side func(ctx context.Context, s policygen.Set) (Filters, error)

// Answered is a request and what both sides decide about it: Istio first.
type Answered struct {
	Set     policygen.Set
	Request policygen.Request
	Answers [gate.Sides]gate.Answer
	// Row is what explains that the answers differ, nil if nothing does.
	Row *Difference
}

// Same tells whether both sides answer the same.
func (a Answered) Same() bool { return a.Answers[0] == a.Answers[1] }

func (a Answered) String() string {
	return fmt.Sprintf("%s: %+v: Istio %s, Fairlead %s", a.Set.Name, a.Request, a.Answers[0], a.Answers[1])
}

// comparison is what all comparisons of a test share.
type comparison struct {
	envoy        string
	keys         *policygen.Keys
	ca           *testkit.CA
	certificates *gate.Certificates
	clusters     []gate.Cluster
	seed         uint64
	perSet       int
	// ownPaths tells that paths are normalised as the filters' own connection manager does it.
	ownPaths bool
	// again, if not nil, tells whether a request with these answers is sent once more, by HTTP/2, whose answers count
	// then.
	again func(policygen.Request, [gate.Sides]gate.Answer) bool
}

// How many workloads one Envoy has, how many proxies ask a control plane and how many sets are asked about at once.
const (
	batch   = 50
	asking  = 4
	callers = 4
)

// doors asks both sides for the filters of sets.
func (c *comparison) doors(ctx context.Context, sets []policygen.Set, sides [gate.Sides]side) (doors [gate.Sides][]gate.Door, err error) {
	for i := range sides {
		doors[i] = make([]gate.Door, len(sets))
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(asking)
	for n, s := range sets {
		for i, ask := range sides {
			g.Go(func() error {
				f, err := ask(ctx, s)
				if err != nil {
					return fmt.Errorf("%s: %w", s.Name, err)
				}
				doors[i][n] = gate.Door{Set: s, HTTP: f.HTTP, Network: f.Network}
				if c.ownPaths {
					doors[i][n].Paths = f.Manager
				}
				return nil
			})
		}
	}
	return doors, g.Wait()
}

// drawn draws the requests to a set's workload.
func (c *comparison) drawn(s policygen.Set) []policygen.Request { return s.Requests(c.seed, c.perSet) }

// why finds the row that explains different answers. What it says both sides answer alike is asked too.
func why(ctx context.Context, from *gate.Callers, a Answered) (*Difference, error) {
	row := explain(a)
	if row == nil || row.instead == nil {
		return row, nil
	}
	alike, err := from.Ask(ctx, row.instead(a.Request))
	if err == nil && (alike[0] != alike[1] || alike[1].Status != a.Answers[1].Status) {
		row = nil
	}
	return row, err
}

// ask sends requests to the workloads of all sets through the filters of both sides, and hands every answer to see, one
// at a time.
func (c *comparison) ask(t *testing.T, sets []policygen.Set, sides [gate.Sides]side, requests func(policygen.Set) []policygen.Request,
	see func(Answered),
) {
	t.Helper()
	doors, err := c.doors(t.Context(), sets, sides)
	testkit.NoError(t, err)
	var mu sync.Mutex
	for begin := 0; begin < len(sets); begin += batch {
		end := min(begin+batch, len(sets))
		var part [gate.Sides][]gate.Door
		for i := range doors {
			part[i] = doors[i][begin:end]
		}
		opened, err := gate.Open(t.Context(), t, gate.Config{Envoy: c.envoy, Clusters: c.clusters, CA: c.ca}, part)
		testkit.NoError(t, err)
		g, ctx := errgroup.WithContext(t.Context())
		g.SetLimit(callers)
		for _, s := range sets[begin:end] {
			g.Go(func() error {
				from := opened.Callers(s, c.keys, c.certificates)
				defer from.Close()
				for _, r := range requests(s) {
					a := Answered{Set: s, Request: r}
					var err error
					a.Answers, err = from.Ask(ctx, r)
					if err == nil && c.again != nil && c.again(r, a.Answers) {
						a.Answers, err = from.AskHTTP2(ctx, r)
					}
					if err == nil && !a.Same() {
						a.Row, err = why(ctx, from, a)
					}
					if err != nil {
						return fmt.Errorf("%s: %+v: %w", s.Name, r, err)
					}
					mu.Lock()
					see(a)
					mu.Unlock()
				}
				return nil
			})
		}
		testkit.NoError(t, g.Wait())
		opened.Close()
	}
}
