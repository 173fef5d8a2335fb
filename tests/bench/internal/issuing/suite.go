package issuing

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"fairlead.dev/tests/bench/internal/machine"
)

// Options say what is compared.
type Options struct {
	// CA, Istiod, StepCA and SPIRE are programs; those that are empty are left out. CA is required.
	CA, Istiod, StepCA, SPIRE string
	// Only is a part to run alone: PartRows, PartStorm or PartMemory; empty: all of them.
	Only string
	// Turns is how often each row is measured, for the duration During.
	Turns  int
	During time.Duration
	// Dir holds keys, configuration and logs.
	Dir string
	// Log is told what is measured now.
	Log io.Writer
}

// InFlight is how many clients ask at once, each over a connection that it keeps.
const InFlight = 64

// Parts of the benchmark.
const (
	PartRows   = "rows"
	PartStorm  = "storm"
	PartMemory = "memory"
)

// Parts are all of them.
func Parts() []string { return []string{PartRows, PartStorm, PartMemory} }

func (o *Options) has(part string) bool { return o.Only == "" || o.Only == part }

// Names of rows.
const (
	caCertificate     = "ca/certificate"
	caToken           = "ca/token"
	caRSA             = "ca/rsa"
	istiodCertificate = "istiod/certificate"
	istiodToken       = "istiod/token"
	stepToken         = "step-ca/token"
	spireMint         = "spire/mint"
)

// lane is a row that is still to be measured.
type lane struct {
	name    string
	row     *row
	server  *machine.Process
	clients []Ask
	floor   *Floor
	// floors is how many certificates the floor issues for one figure.
	floors int
}

// bench has what all lanes share.
type bench struct {
	Options
	cores     *machine.Cores
	keys      *Tokens
	workloads []*Workload
	lanes     []lane
	stops     []func()
}

// Run measures all rows, each in every turn beside the floor, and returns them with the goals.
func Run(ctx context.Context, o Options) ([]*row, []Goal, error) {
	b := &bench{Options: o}
	defer func() {
		for _, stop := range b.stops {
			stop()
		}
	}()
	if err := b.prepare(); err != nil {
		return nil, nil, err
	}
	if o.has(PartRows) {
		if err := b.start(ctx); err != nil {
			return nil, nil, err
		}
	}
	for turn := range o.Turns {
		for _, l := range b.lanes {
			fmt.Fprintf(o.Log, "turn %d of %d: %s\n", turn+1, o.Turns, l.row.what)
			if err := b.measure(ctx, l); err != nil {
				return nil, nil, fmt.Errorf("%s: %w: %s", l.row.what, err, l.server.LogTail())
			}
		}
	}
	var rows []*row
	named := map[string]*row{}
	for _, l := range b.lanes {
		rows, named[l.name] = append(rows, l.row), l.row
	}
	var out []Goal
	if o.has(PartRows) {
		out = goals(named)
	}
	if o.has(PartStorm) {
		many, err := b.storm(ctx)
		if out = append(out, many...); err != nil {
			return rows, out, err
		}
	}
	if o.has(PartMemory) {
		many, err := b.memory(ctx)
		if out = append(out, many...); err != nil {
			return rows, out, err
		}
	}
	return rows, out, nil
}

// measure measures a lane between two figures of the floor, so that a machine that becomes slower meanwhile decides
// little.
func (b *bench) measure(ctx context.Context, l lane) error {
	if _, err := Load(ctx, l.server, l.clients, b.During/4); err != nil { // warm
		return err
	}
	before, err := l.floor.Measure(l.floors)
	if err != nil {
		return err
	}
	sample, err := Load(ctx, l.server, l.clients, b.During)
	if err != nil {
		return err
	}
	after, err := l.floor.Measure(l.floors)
	l.row.rounds = append(l.row.rounds, round{sample, (before + after) / 2})
	return err
}

// prepare divides the machine and makes the key of tokens.
func (b *bench) prepare() (err error) {
	if b.cores, err = machine.Divide(); err != nil {
		return err
	}
	b.keys, err = NewTokens()
	return err
}

// start starts floors and servers and connects the clients.
func (b *bench) start(ctx context.Context) error {
	for n := range InFlight {
		w, err := NewWorkload(n)
		if err != nil {
			return err
		}
		b.workloads = append(b.workloads, w)
	}
	ec, floor, err := b.authority("ecdsa", ECDSA)
	if err != nil {
		return err
	}
	ca, err := b.istioAPI(StartCA(ctx, b.CA, ec, b.keys, &b.cores.Server))
	if err != nil {
		return err
	}
	fill := func(l lane, clients []Ask, err error) error {
		l.clients, l.floor, l.floors = clients, floor, 4000
		b.lanes = append(b.lanes, l)
		return err
	}
	of := func(what string) *row { return &row{what: what} }
	clients, err := ca.Clients(ctx, b.workloads, b.keys, true)
	if err := fill(lane{name: caCertificate, row: of("ca, callers with certificates"), server: ca.Process}, clients, err); err != nil {
		return err
	}
	clients, err = ca.Clients(ctx, b.workloads, b.keys, false)
	if err := fill(lane{name: caToken, row: of("ca, callers with tokens"), server: ca.Process}, clients, err); err != nil {
		return err
	}
	if b.Istiod != "" {
		istiod, err := b.istioAPI(StartIstiod(ctx, b.Istiod, ec, b.keys, &b.cores.Server))
		if err != nil {
			return err
		}
		clients, err := istiod.Clients(ctx, b.workloads, b.keys, true)
		if err := fill(lane{name: istiodCertificate, row: of("istiod, callers with certificates"), server: istiod.Process}, clients,
			err); err != nil {
			return err
		}
		clients, err = istiod.Clients(ctx, b.workloads, b.keys, false)
		if err := fill(lane{name: istiodToken, row: of("istiod, callers with tokens"), server: istiod.Process}, clients, err); err != nil {
			return err
		}
	}
	if b.StepCA != "" {
		step, err := StartStepCA(ctx, b.StepCA, ec, &b.cores.Server)
		if err != nil {
			return err
		}
		b.stops = append(b.stops, step.Stop)
		clients, err := step.Clients(ctx, b.workloads)
		if err := fill(lane{name: stepToken, row: of("step-ca, one-time tokens"), server: step.Process}, clients, err); err != nil {
			return err
		}
	}
	if b.SPIRE != "" {
		spire, err := StartSPIRE(ctx, b.SPIRE, ec, &b.cores.Server)
		if err != nil {
			return err
		}
		b.stops = append(b.stops, spire.Stop)
		clients, err := spire.Clients(ctx, b.workloads)
		if err := fill(lane{name: spireMint, row: of("SPIRE, local and without TLS"), server: spire.Process}, clients, err); err != nil {
			return err
		}
	}
	return b.rsa(ctx)
}

// rsa adds the row of the ca with an RSA intermediate.
func (b *bench) rsa(ctx context.Context) error {
	rsa, floor, err := b.authority("rsa", RSA)
	if err != nil {
		return err
	}
	ca, err := b.istioAPI(StartCA(ctx, b.CA, rsa, b.keys, &b.cores.Server))
	if err != nil {
		return err
	}
	clients, err := ca.Clients(ctx, b.workloads, b.keys, true)
	b.lanes = append(b.lanes, lane{name: caRSA, row: &row{what: "ca, RSA-2048 intermediate, callers with certificates"}, server: ca.Process,
		clients: clients, floor: floor, floors: 800})
	return err
}

// authority makes an authority and starts its floor.
func (b *bench) authority(name, kind string) (*Authority, *Floor, error) {
	a, err := NewAuthority(filepath.Join(b.Dir, name), kind)
	if err != nil {
		return nil, nil, err
	}
	floor, err := StartFloor(a, &b.cores.Server)
	if err == nil {
		b.stops = append(b.stops, floor.Kill)
	}
	return a, floor, err
}

func (b *bench) istioAPI(s *IstioAPI, err error) (*IstioAPI, error) {
	if err == nil {
		b.stops = append(b.stops, s.Stop)
	}
	return s, err
}

// TempDir is a directory for Options.Dir, which the caller removes.
func TempDir() (string, error) { return os.MkdirTemp("", "fairlead-bench-ca-") }
