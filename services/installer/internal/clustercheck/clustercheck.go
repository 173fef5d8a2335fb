// Package clustercheck probes, with the rights of whoever runs it, whether clusters can be one mesh: Read gathers what
// one cluster says of itself (facts.go, ranges.go), probe.go tries the credentials of its remote Secrets, and Check
// compares (rules.go, services.go). The command `fairlead clusters check` calls it. Nothing is written anywhere, but
// for the Pods of call.go, which are made where that is asked for, and removed.
package clustercheck

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// Verdict of a Row.
type Verdict string

// Verdicts, the worst last. Unknown is for what could not be probed.
const (
	OK      Verdict = "OK"
	Warning Verdict = "WARNING"
	Unknown Verdict = "UNKNOWN"
	Failed  Verdict = "FAILED"
)

// Row is what one check says of one cluster, or of several.
type Row struct {
	// Check is its name, such as "roots".
	Check string `json:"check"`
	// Clusters are the contexts that it is about.
	Clusters []string `json:"clusters"`
	Verdict  Verdict  `json:"verdict"`
	Finding  string   `json:"finding"`
	// Remedy says what to do; empty with OK.
	Remedy string `json:"remedy,omitempty"`
}

// Bad reports whether a row means that the clusters may not work together: Failed and Unknown do.
func (r Row) Bad() bool { return r.Verdict == Failed || r.Verdict == Unknown }

// report collects rows.
type report struct{ rows []Row }

func (r *report) add(check string, v Verdict, remedy string, about []*Facts, format string, a ...any) {
	row := Row{Check: check, Verdict: v, Finding: fmt.Sprintf(format, a...), Remedy: remedy}
	for _, f := range about {
		row.Clusters = append(row.Clusters, f.Context)
	}
	r.rows = append(r.rows, row)
}

// unknown adds a row if a fact of a cluster could not be read.
func (r *report) unknown(check string, f *Facts) bool {
	err := f.unread[check]
	if err != nil {
		r.add(check, Unknown, remedyOf(err), []*Facts{f}, "cannot be read: %v", err)
	}
	return err != nil
}

// Options say how to check.
type Options struct {
	// Now is the time on this machine.
	Now func() time.Time
	// Lookup resolves host names of gateways; nil is the resolver of this machine.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	// Call, if it is not nil, has a Pod of each cluster call the other: it makes the Pods, and removes them.
	Call *Call
}

// Run reads all clusters, tries their remote Secrets, and compares each pair. What Options.Call makes is removed when
// it returns, also if ctx has ended.
func Run(ctx context.Context, clusters []Cluster, o Options) []Row {
	if o.Lookup == nil {
		o.Lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	all := make([]*Facts, len(clusters))
	var reading errgroup.Group
	for i, c := range clusters {
		reading.Go(func() error {
			all[i] = c.read(ctx, o.Now)
			all[i].lookUp(ctx, o.Lookup)
			return nil
		})
	}
	_ = reading.Wait() // nothing fails
	reachable := slices.DeleteFunc(slices.Clone(all), func(f *Facts) bool { return f.away != nil })
	for _, f := range reachable {
		f.probeSecrets(ctx, reachable)
	}
	nameByCredentials(reachable)
	r := &report{}
	for _, f := range all {
		r.server(f)
	}
	for _, f := range reachable {
		r.alone(f)
	}
	for i, a := range reachable {
		for _, b := range reachable[i+1:] {
			r.pair(a, b)
		}
	}
	if o.Call != nil {
		r.rows = append(r.rows, o.Call.all(ctx, reachable)...)
	}
	return r.rows
}
