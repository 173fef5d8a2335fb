// Package suite measures, row by row, what xds-server needs to keep a mesh's proxies up to date, against a floor of the
// same bytes.
package suite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Options of a run.
type Options struct {
	// BinDir has the binaries under test.
	BinDir string
	// Full is the long form.
	Full bool
	// Rows are the groups to run, or parts of them; empty means all.
	Rows []string
	// Page is rewritten if it is not empty.
	Page string
	// Against is a page whose table the rows are compared with if it is not empty.
	Against string
	// Keep is where logs and profiles stay; empty means that they do not.
	Keep    string
	Profile bool
	// Definitions is the directory of the CustomResourceDefinitions, for the groups that need them.
	Definitions string
	// Envoy is the binary, for the group that needs it.
	Envoy string
	// Realtime runs everything before other programs of the machine.
	Realtime bool
}

// ErrMissed means that a goal that is claimed to be reached was missed.
var ErrMissed = errors.New("goals missed that are claimed to be reached")

// group is a set of rows that share a mesh.
type group struct {
	name string
	run  func(context.Context, *lab, *table) error
	// table is the marker of the group's table if that is not the usual one: such a group runs only if it is named.
	table string
}

// groups in the order they run.
var groups = []group{
	{name: "mesh-200", run: func(ctx context.Context, l *lab, t *table) error { return l.updates(ctx, t, 200) }},
	{name: "mesh-1000", run: func(ctx context.Context, l *lab, t *table) error { return l.updates(ctx, t, 1000) }},
	{name: "large", run: func(ctx context.Context, l *lab, t *table) error { return l.large(ctx, t) }},
	{name: "tls", run: func(ctx context.Context, l *lab, t *table) error { return l.coldTLS(ctx, t) }},
	{name: "mixed", run: func(ctx context.Context, l *lab, t *table) error { return l.mixed(ctx, t, "mixed", 1000) }},
	// What one of four xds-servers has to do in the same mesh.
	{name: "mixed-250", run: func(ctx context.Context, l *lab, t *table) error { return l.mixed(ctx, t, "mixed-250", 250) }},
	{name: "endpoints", run: func(ctx context.Context, l *lab, t *table) error { return l.endpoints(ctx, t) }},
	{name: "planning", run: func(ctx context.Context, l *lab, t *table) error { return l.planning(ctx, t) }},
	{name: "policies", run: func(ctx context.Context, l *lab, t *table) error { return l.policies(ctx, t) }},
	{name: "memory", run: func(ctx context.Context, l *lab, t *table) error { return l.memory(ctx, t) }},
	{name: "files", run: func(ctx context.Context, l *lab, t *table) error { return l.files(ctx, t) }},
	{name: "kube", run: func(ctx context.Context, l *lab, t *table) error { return l.beside(ctx, t) }, table: tableKube},
	{name: "gateway", run: func(ctx context.Context, l *lab, t *table) error { return l.gateway(ctx, t) }, table: tableGateway},
	{name: "consul", run: func(ctx context.Context, l *lab, t *table) error { return l.registered(ctx, t) }, table: tableConsul},
}

// Groups names the groups of rows and their parts.
func Groups() []string {
	var names []string
	for _, g := range groups {
		names = append(names, g.name)
		if strings.HasPrefix(g.name, "mesh-") {
			for _, part := range parts {
				names = append(names, g.name+"/"+part)
			}
		}
	}
	return names
}

// Parts of the groups of the first mesh; each begins with the cold start.
const (
	partUnrelated = "unrelated"
	partPushed    = "pushed"
	partReconnect = "reconnect"
)

var parts = []string{partUnrelated, partPushed, partReconnect}

// wants reports whether a group is to be measured, or some part of it.
func (o *Options) wants(g group) bool {
	if len(o.Rows) == 0 {
		return g.table == ""
	}
	return slices.ContainsFunc(o.Rows, func(row string) bool { return row == g.name || strings.HasPrefix(row, g.name+"/") })
}

// wantsPart reports whether a part of a group is.
func (o *Options) wantsPart(group, part string) bool {
	return len(o.Rows) == 0 || slices.Contains(o.Rows, group) || slices.Contains(o.Rows, group+"/"+part)
}

// faults are what is wrong with the rows of a group.
type faults struct {
	moved []movedRow
	// missed are the ids of the claimed goals that were missed.
	missed []string
}

// measure runs a group, and again while something is wrong with its rows: it returns what was wrong each time. t gets
// the first run's rows.
func (g group) measure(ctx context.Context, l *lab, t *table, page string, recorded map[string]line) (v faults, err error) {
	for attempt := range attempts {
		run := &table{out: t.out, claimed: t.claimed, marker: t.marker}
		if err := g.run(ctx, l, run); err != nil {
			return v, err
		}
		now := faults{moved: run.moved(page, recorded), missed: run.misses()}
		if attempt == 0 {
			t.lines, v = append(t.lines, run.lines...), now
		}
		v.moved = slices.DeleteFunc(v.moved, func(row movedRow) bool {
			return !slices.ContainsFunc(now.moved, func(other movedRow) bool { return other.name == row.name })
		})
		v.missed = slices.DeleteFunc(v.missed, func(id string) bool { return !slices.Contains(now.missed, id) })
		if len(v.moved)+len(v.missed) == 0 {
			break
		}
		fmt.Fprintf(t.out, "# %s, run %d of at most %d: %d rows are not as they should be\n", g.name, attempt+1, attempts,
			len(v.moved)+len(v.missed))
	}
	return v, nil
}

// Run measures and prints. It returns ErrMissed if a claimed goal was missed, and ErrMoved if a row is not as the page
// Against says.
func Run(ctx context.Context, o Options, out io.Writer) error {
	for _, name := range o.Rows {
		if !slices.Contains(Groups(), name) {
			return fmt.Errorf("no rows are named %q, only %s", name, strings.Join(Groups(), ", "))
		}
	}
	var recorded map[string]line
	if o.Against != "" {
		var err error
		if recorded, err = readPage(o.Against, tableUsual); err != nil {
			return err
		}
	}
	start := time.Now()
	l, err := newLab(ctx, o, out)
	if l != nil {
		defer l.close()
	}
	if err != nil {
		return err
	}
	claimed := map[string]bool{}
	for _, id := range claims {
		claimed[id] = true
	}
	var moved []error
	var ids []string
	var tables []*table
	for _, marker := range []string{tableUsual, tableKube, tableGateway, tableConsul} {
		tables = append(tables, &table{out: out, claimed: claimed, marker: marker})
	}
	for _, g := range groups {
		if !o.wants(g) {
			continue
		}
		t := tables[slices.IndexFunc(tables, func(t *table) bool { return t.marker == cmp.Or(g.table, tableUsual) })]
		begin := time.Now()
		v, err := g.measure(ctx, l, t, o.Against, recorded)
		if err != nil {
			return fmt.Errorf("%s: %w", g.name, err)
		}
		for _, row := range v.moved {
			moved = append(moved, row.err)
		}
		ids = append(ids, v.missed...)
		fmt.Fprintf(out, "# %s took %.0f s\n", g.name, time.Since(begin).Seconds())
	}
	for _, t := range tables {
		if len(t.lines) == 0 {
			continue
		}
		fmt.Fprintf(out, "\n%s\n", t.markdown())
		if o.Page != "" {
			if err := writePage(o.Page, t.marker, t.markdown()); err != nil {
				return err
			}
		}
	}
	fmt.Fprintf(out, "measured in %.0f s\n", time.Since(start).Seconds())
	if len(ids) > 0 {
		err = fmt.Errorf("%w: %s", ErrMissed, strings.Join(ids, ", "))
	}
	if len(moved) > 0 {
		err = errors.Join(err, fmt.Errorf("%w:\n%w", ErrMoved, errors.Join(moved...)))
	}
	return err
}
