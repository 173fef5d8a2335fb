package consul

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fetch"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source/consul/registry"
)

const (
	// previews bounds those at once, previewTime each of them, and previewInstances what it reads.
	previews         = 2
	previewTime      = 30 * time.Second
	previewInstances = 200_000
	// failingFor is how long a registry may fail until a preview gives it up.
	failingFor = 3 * time.Second
	lookEvery  = 50 * time.Millisecond
)

// ErrBusy is the error of a preview while there are as many as are possible.
var ErrBusy = fmt.Errorf("%d previews of registries are made now, which are as many as possible; try again in %s", previews, previewTime)

// PreviewConfig of Previews. All fields but Registries are required, and mean what they mean in Config.
type PreviewConfig struct {
	Addresses      fetch.Addresses
	Domain, System string
	Follow         func(Connection) Follower
	// Registries are those that the mesh has; nil if there can be none.
	Registries *Registries
	Clock      clock.Clock
}

// Previews tell what registries would become, without effect. They are safe for concurrent use.
type Previews struct {
	cfg   PreviewConfig
	slots chan struct{}
}

// NewPreviews returns Previews.
func NewPreviews(cfg PreviewConfig) *Previews {
	return &Previews{cfg: cfg, slots: make(chan struct{}, previews)}
}

// Make judges a declaration of the registry name, as one of a file that names no other files, reads the registry once
// and forgets it. taken says which object of another source has a host already; "" for none. The error is of type
// object.Problems if the declaration is not possible, or ErrBusy, or says why the registry cannot be read. Nothing of
// the declaration is logged.
func (p *Previews) Make(ctx context.Context, name string, text []byte, taken func(host string) string) (registry.Preview, error) {
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	default:
		return registry.Preview{}, ErrBusy
	}
	d, found := parse(written{name: name, text: text, sent: true},
		bounds{addresses: p.cfg.Addresses, domain: p.cfg.Domain, system: p.cfg.System})
	if d == nil {
		return registry.Preview{}, found
	}
	read := &once{rules: d.Rules, services: map[string][]registry.Instance{}, others: map[string]struct{}{}}
	problem, err := p.read(ctx, d, read)
	if err != nil {
		return registry.Preview{}, err
	}
	read.mu.Lock()
	defer read.mu.Unlock()
	out := d.Preview(read.services, taken)
	out.Unmatched = append(out.Unmatched, sorted(read.others)...)
	slices.Sort(out.Unmatched)
	if problem != nil {
		out.Problems = append(object.Problems{{Field: "registry", Reason: problem.Error()}}, out.Problems...)
	}
	if other := p.cfg.Registries.owner(d); other != "" {
		out.Problems = append(object.Problems{sameHosts(other, d)}, out.Problems...)
	}
	return out, nil
}

// read reads a registry until everything has been read once. problem is what may be missing nevertheless.
func (p *Previews) read(ctx context.Context, d *declaration, to *once) (problem, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, previewTime, fmt.Errorf("%s was not read within %s; match fewer services by rules", d.address,
		previewTime))
	ctx, stop := context.WithCancelCause(ctx)
	to.stop = stop
	f := p.cfg.Follow(Connection{Address: d.address, Datacenter: d.Datacenter, Token: d.token, TLS: d.tls,
		DialContext: p.cfg.Addresses.Dialer().DialContext, Filter: to.wanted, Log: slog.New(slog.DiscardHandler), Clock: p.cfg.Clock})
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx, to) }()
	defer func() {
		stop(nil)
		cancel()
		if ended != nil {
			<-ended //nolint:errcheck // it ends because ctx has
		}
	}()
	var failing time.Time
	for {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case err := <-ended:
			ended = nil
			return nil, errors.Join(err, context.Cause(ctx))
		case <-p.cfg.Clock.After(lookEvery):
		}
		st, now := f.Status(), p.cfg.Clock.Now()
		switch {
		case st.Synced:
			return st.Degraded, nil
		case st.Degraded == nil:
			failing = time.Time{}
		case failing.IsZero():
			failing = now
		case now.Sub(failing) >= failingFor:
			return nil, st.Degraded
		}
	}
}

// once is a Handler that keeps what it is told, within bounds.
type once struct {
	rules []registry.Rule
	stop  context.CancelCauseFunc

	mu        sync.Mutex
	services  map[string][]registry.Instance
	instances int
	// others are services that no rule matches.
	others map[string]struct{}
}

// wanted is Connection.Filter.
func (o *once) wanted(name string) bool {
	for i := range o.rules {
		if o.rules[i].Matches(name) {
			return true
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.others) < maxServices && !registry.Own(name) {
		o.others[name] = struct{}{}
	}
	return false
}

// Names implements Handler.
func (o *once) Names(names []string) {
	if len(names) > maxServices {
		o.stop(fmt.Errorf("it has %d services that rules match, and at most %d are read; match fewer of them by rules", len(names), maxServices))
	}
}

// Service implements Handler.
func (o *once) Service(name string, instances []registry.Instance) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.services) >= maxServices {
		return
	}
	o.instances += len(instances) - len(o.services[name])
	o.services[name] = instances
	if o.instances > previewInstances {
		o.stop(fmt.Errorf("it has more than %d instances of services that rules match; match fewer of them by rules", previewInstances))
	}
}

// Whole implements Handler.
func (o *once) Whole(bool) {}

// owner is the registry of another name that has the hosts of a declaration; "" if there is none.
func (c *Registries) owner(d *declaration) string {
	if c == nil {
		return ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range sorted(c.running) {
		if r := c.running[name]; name != d.Name && namesOf(r.decl) == namesOf(d) {
			return name
		}
	}
	return ""
}

// sameHosts is the problem of a declaration whose hosts another registry has.
func sameHosts(other string, d *declaration) object.Problem {
	return object.Problem{Field: "domain", Reason: fmt.Sprintf("the older registry %s has the hosts of %s", other, namesOf(d)),
		Remedy: "set qualified: true, so that its hosts name the datacenter, or another domain, or write the rules of one datacenter in one " +
			"registry"}
}
