// Package suite measures, row by row, what xds-server needs to keep a mesh's proxies up to date, against a floor of the
// same bytes.
package suite

import (
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
	// Keep is where logs and profiles stay; empty means that they do not.
	Keep    string
	Profile bool
	// Realtime runs everything before other programs of the machine.
	Realtime bool
}

// ErrMissed means that a goal that is claimed to be reached was missed.
var ErrMissed = errors.New("goals missed that are claimed to be reached")

// group is a set of rows that share a mesh.
type group struct {
	name string
	run  func(context.Context, *lab, *table) error
}

// groups in the order they run.
var groups = []group{
	{"mesh-200", func(ctx context.Context, l *lab, t *table) error { return l.updates(ctx, t, 200) }},
	{"mesh-1000", func(ctx context.Context, l *lab, t *table) error { return l.updates(ctx, t, 1000) }},
	{"large", func(ctx context.Context, l *lab, t *table) error { return l.large(ctx, t) }},
	{"tls", func(ctx context.Context, l *lab, t *table) error { return l.coldTLS(ctx, t) }},
	{"mixed", func(ctx context.Context, l *lab, t *table) error { return l.mixed(ctx, t, "mixed", 1000) }},
	// What one of four xds-servers has to do in the same mesh.
	{"mixed-250", func(ctx context.Context, l *lab, t *table) error { return l.mixed(ctx, t, "mixed-250", 250) }},
	{"planning", func(ctx context.Context, l *lab, t *table) error { return l.planning(ctx, t) }},
	{"memory", func(ctx context.Context, l *lab, t *table) error { return l.memory(ctx, t) }},
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
func (o *Options) wants(group string) bool {
	return len(o.Rows) == 0 || slices.ContainsFunc(o.Rows, func(row string) bool { return row == group || strings.HasPrefix(row, group+"/") })
}

// wantsPart reports whether a part of a group is.
func (o *Options) wantsPart(group, part string) bool {
	return len(o.Rows) == 0 || slices.Contains(o.Rows, group) || slices.Contains(o.Rows, group+"/"+part)
}

// Run measures and prints. It returns ErrMissed if a claimed goal was missed.
func Run(ctx context.Context, o Options, out io.Writer) error {
	for _, name := range o.Rows {
		if !slices.Contains(Groups(), name) {
			return fmt.Errorf("no rows are named %q, only %s", name, strings.Join(Groups(), ", "))
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
	t := &table{out: out, claimed: map[string]bool{}}
	for _, id := range claims {
		t.claimed[id] = true
	}
	for _, g := range groups {
		if !o.wants(g.name) {
			continue
		}
		begin := time.Now()
		if err := g.run(ctx, l, t); err != nil {
			return fmt.Errorf("%s: %w", g.name, err)
		}
		fmt.Fprintf(out, "# %s took %.0f s\n", g.name, time.Since(begin).Seconds())
	}
	fmt.Fprintf(out, "\n%s\nmeasured in %.0f s\n", t.markdown(), time.Since(start).Seconds())
	if o.Page != "" {
		if err := writePage(o.Page, t.markdown()); err != nil {
			return err
		}
	}
	if ids := t.misses(); len(ids) > 0 {
		return fmt.Errorf("%w: %s", ErrMissed, strings.Join(ids, ", "))
	}
	return nil
}
