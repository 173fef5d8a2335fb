// Package consul is the source of services that are registered in Consul. A registry is one datacenter; Secrets with
// Label and files of a directory declare registries (declaration.go), with the rules by which package registry makes
// objects of what is registered.
//
// Registries follows the declarations (registries.go) and brings the readers in line with them: a new one starts a
// reader, a changed one is exchanged under it without a gap, and one that is gone removes all that it has delivered.
// A reader (reader.go) is told by its Follower what the datacenter has, and delivers what changes. A registry that
// cannot be read keeps what it has delivered last, across restarts too (saved.go); Status and List say so (status.go).
// What its readings lack is removed as package withheld allows (withhold.go).
package consul

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fetch"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/lastgood"
	"fairlead.dev/services/config-watcher/internal/source/record"
	"fairlead.dev/services/config-watcher/internal/source/secretwatch"
)

// Name is the name of Registries as a source. The registries themselves are sources "consul/<name>".
const Name = "consul"

// Label marks the Secrets that declare registries.
const Label = "fairlead.dev/registry=consul"

const (
	// maxRegistries bounds the registries that are read, maxIgnored the declarations without an effect that are named.
	maxRegistries = 50
	maxIgnored    = 100
	// checkEvery is how often files are read and states are looked at.
	checkEvery = time.Second
	// restoreAfter is how long the declarations may stay unread at the start, or a registry that does not answer, until
	// what the last run has read is served; restoreSlowly is that of a registry that answers.
	restoreAfter  = 2 * time.Second
	restoreSlowly = 15 * time.Second
)

// Config of Registries. Follow, Timeout, Domain, System, Log and Clock are required.
type Config struct {
	// Secrets are those of Namespace; nil if there are none. Dir is the directory of files; "" for none.
	Secrets   corev1client.SecretInterface
	Namespace string
	Dir       string
	// Grace is how long a registry stays whose file is gone.
	Grace time.Duration
	// Addresses are those that Consul and its instances may have.
	Addresses fetch.Addresses
	// Domain is the DNS suffix of the mesh's services, System the namespace of the control plane.
	Domain, System string
	// Timeout is how long the first revision waits for a registry.
	Timeout time.Duration
	// Follow makes what reads a datacenter: Follow of this package, or a test's.
	Follow func(Connection) Follower
	// Saved keeps what was read; if nil it is not kept. Codec encodes it.
	Saved *lastgood.Dir
	Codec record.Codec
	Log   *slog.Logger
	Clock clock.Clock
}

// Registries are the registries in Consul. It is a source.Source whose objects are those of all registries.
type Registries struct {
	cfg     Config
	wake    chan struct{}
	secrets *secretwatch.Secrets
	handler source.Handler
	files   files

	mu      sync.Mutex
	started time.Time
	applied bool
	running map[string]*reader
	// ignored are declarations without an effect, refused those of registries that do not run.
	ignored, refused []Row
	problems         object.Problems
	unreadDir        error
	// lost are registries whose Secret a list lacks.
	lost secretwatch.Lost
	// savedKnown is the content of knownFile.
	savedKnown string
}

// New returns Registries; Run reads.
func New(cfg Config) *Registries {
	c := &Registries{cfg: cfg, wake: make(chan struct{}, 1), running: map[string]*reader{}, started: cfg.Clock.Now(),
		files: files{dir: cfg.Dir, grace: cfg.Grace}}
	if cfg.Secrets != nil {
		c.secrets = secretwatch.New(secretwatch.Config{Secrets: cfg.Secrets, Namespace: cfg.Namespace, Label: Label, What: "registries",
			Wake: c.wake, Event: c.event, Log: cfg.Log, Clock: cfg.Clock})
	}
	return c
}

// Run implements source.Source.
func (c *Registries) Run(ctx context.Context) error {
	failed := make(chan error, 1)
	known := c.known()
	var watching sync.WaitGroup
	if c.secrets != nil {
		watching.Go(func() { c.secrets.Run(ctx) })
	}
	defer watching.Wait()
	defer c.stopAll()
	for first := true; ; first = false {
		if !first {
			select {
			case <-ctx.Done():
				return nil
			case err := <-failed:
				return err
			case <-c.wake:
			case <-c.cfg.Clock.After(checkEvery):
			}
		}
		now := c.cfg.Clock.Now()
		all, lists, complete := c.declared(now)
		switch {
		case complete:
			c.apply(ctx, all, lists, known, failed)
			known = nil
		case now.Sub(c.started) >= restoreAfter:
			c.mu.Lock()
			c.restoreUndeclared(ctx, known, failed)
			c.mu.Unlock()
		}
		c.look(now)
		c.save(false)
	}
}

// stopAll ends the readers, which keep what they have.
func (c *Registries) stopAll() {
	c.mu.Lock()
	all := slices.Collect(maps.Values(c.running))
	c.mu.Unlock()
	for _, r := range all {
		r.settle(c.cfg.Clock.Now())
		r.stop()
	}
	for _, r := range all {
		<-r.done
	}
	c.save(true)
}

// declared lists all declarations, files first and then Secrets by age: the first of a name counts. lists is how often
// the Secrets were listed. complete is false until everything that declares has been read once.
func (c *Registries) declared(now time.Time) (all []written, lists uint64, complete bool) {
	complete = true
	if c.cfg.Dir != "" {
		list, err := c.files.read(now)
		c.mu.Lock()
		if err != nil && c.unreadDir == nil {
			c.cfg.Log.Warn("the directory of registries cannot be read, those that are known stay", "error", err)
		}
		c.unreadDir = err
		c.mu.Unlock()
		all, complete = list, c.files.known
	}
	if c.secrets != nil {
		st := c.secrets.State()
		lists, complete = st.Lists, complete && st.Lists > 0
		var secrets []written
		for _, s := range st.ByName {
			secrets = append(secrets, fromSecret(s))
		}
		slices.SortFunc(secrets, func(a, b written) int { return cmp.Or(a.created.Compare(b.created), strings.Compare(a.name, b.name)) })
		all = append(all, secrets...)
	}
	return all, lists, complete
}

// apply brings the readers in line with the declarations after so many lists of the Secrets. known are registries of
// the last run.
func (c *Registries) apply(ctx context.Context, all []written, lists uint64, known map[string]bool, failed chan<- error) {
	wanted := c.choose(all)
	c.mu.Lock()
	keep := c.withhold(wanted, known, lists)
	var gone []*reader
	for name, r := range c.running {
		if _, is := wanted[name]; !is && !keep[name] {
			gone = append(gone, r)
			delete(c.running, name)
		}
	}
	c.mu.Unlock()
	for _, r := range gone {
		c.cfg.Log.Info("registry is removed with its objects", "registry", r.name)
		r.end()
		r.forget()
		c.removeSaved(r.name)
	}
	lost := map[string]bool{}
	for name, of := range known {
		if _, is := wanted[name]; keep[name] {
			lost[name] = of
		} else if !is {
			c.removeSaved(name)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.restoreUndeclared(ctx, lost, failed)
	c.refused = nil
	owners := map[string]string{}
	for _, w := range all { // in the order of age
		if wanted[w.name].place == w.place {
			c.take(ctx, w, owners, failed)
		}
	}
	c.applied = true
	c.collectProblems()
	c.putKnown()
}

// choose finds the declaration that counts for each name, and notes the others.
func (c *Registries) choose(all []written) map[string]written {
	wanted := map[string]written{}
	var ignored []Row
	for _, w := range all {
		first, taken := wanted[w.name]
		why := ""
		switch {
		case taken:
			why = fmt.Sprintf("%s declares the same registry, and counts; remove one of them", first.place)
		case len(wanted) >= maxRegistries:
			why = fmt.Sprintf("there are more than %d registries; remove some of them", maxRegistries)
		default:
			wanted[w.name] = w
			continue
		}
		if len(ignored) < maxIgnored {
			ignored = append(ignored, Row{Name: w.name, Place: w.place, State: Ignored, Message: why})
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, row := range ignored {
		if !slices.ContainsFunc(c.ignored, func(r Row) bool { return r.Place == row.Place && r.Message == row.Message }) {
			c.cfg.Log.Warn("declaration of a registry has no effect", "place", row.Place, "reason", row.Message)
		}
	}
	c.ignored = ignored
	return wanted
}

// namesOf is the part of the DNS that a registry's hosts are in. Two registries cannot have the same.
func namesOf(d *declaration) string {
	if d.Qualified {
		return d.Datacenter + ".dc." + d.Domain
	}
	return d.Domain
}

// take takes over the declaration that counts for a registry. owners are the older registries by their part of the
// DNS. It is called with mu held.
func (c *Registries) take(ctx context.Context, w written, owners map[string]string, failed chan<- error) {
	d, found := parse(w, bounds{addresses: c.cfg.Addresses, domain: c.cfg.Domain, system: c.cfg.System})
	if d != nil {
		if other, taken := owners[namesOf(d)]; taken {
			j, p := &judge{of: w}, sameHosts(other, d)
			j.fail(p.Field, p.Reason, p.Remedy)
			d, found = nil, j.found
		}
	}
	r := c.running[w.name]
	if d == nil {
		c.refuse(w, r, found)
		if r != nil && r.decl != nil {
			owners[namesOf(r.decl)] = w.name
		}
		return
	}
	owners[namesOf(d)] = w.name
	switch {
	case r == nil:
		c.cfg.Log.Info("registry is read", "registry", d.Name, "place", d.place, "address", d.address, "datacenter", d.Datacenter)
		c.begin(ctx, d, failed)
		c.saveDeclaration(d)
	case r.seen == d.hash && r.place == d.place && r.refused == nil:
	default:
		c.cfg.Log.Info("registry has another declaration", "registry", d.Name, "place", d.place, "address", d.address)
		before := r.decl
		r.declare(d)
		if _, only := (*r.follower.Load()).(undeclared); only {
			r.end()
			r.start(ctx, c.cfg.Follow(r.connection(d)), failed)
		} else if before.hash != d.hash {
			(*r.follower.Load()).Reconnect(r.connection(d))
		}
		c.saveDeclaration(d)
	}
}

// refuse takes over that a declaration is refused. A registry that runs goes on with the one that it has. It is called
// with mu held.
func (c *Registries) refuse(w written, r *reader, found object.Problems) {
	before := c.problems
	if r != nil {
		r.mu.Lock()
		r.place, r.refused = w.place, found
		r.mu.Unlock()
	} else {
		c.refused = append(c.refused, Row{Name: w.name, Place: w.place, State: Refused, Message: textOf(found), problems: found})
	}
	for _, p := range found {
		if !slices.Contains(before, p) {
			c.cfg.Log.Warn("declaration of a registry is refused", "registry", w.name, "problem", p.Error())
		}
	}
}

// begin reads a registry. It is called with mu held.
func (c *Registries) begin(ctx context.Context, d *declaration, failed chan<- error) {
	r := newReader(d.Name, &c.cfg, c.handler)
	r.declare(d)
	c.running[d.Name] = r
	c.restore(r)
	r.start(ctx, c.cfg.Follow(r.connection(d)), failed)
}

// look asks for second readings, ends the waiting for registries that take too long, and serves what the last run has
// read of those that do not answer.
func (c *Registries) look(now time.Time) {
	c.mu.Lock()
	readers := slices.Collect(maps.Values(c.running))
	c.mu.Unlock()
	for _, r := range readers {
		r.confirm(now)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost.Due(now) {
		c.secrets.Relist()
	}
	for _, r := range c.running {
		r.settle(now)
		waited, away := now.Sub(r.started), r.following().Degraded
		if waited >= restoreSlowly || away != nil && waited >= restoreAfter {
			r.serveSaved()
		}
		if st := r.Status(); !r.isOverdue() && !st.Settled() && waited >= c.cfg.Timeout {
			r.setOverdue()
			c.cfg.Log.Error("registry was not read in time, the mesh does not wait for it", "registry", r.name, "timeout", c.cfg.Timeout, "error",
				st.Degraded)
		}
	}
}

func (c *Registries) putKnown() {
	if c.cfg.Saved == nil {
		return
	}
	var text bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(c.running)) {
		if text.WriteString(name); c.running[name].decl.bySecret {
			text.WriteString(" " + bySecret)
		}
		text.WriteByte('\n')
	}
	if text.String() != c.savedKnown {
		c.savedKnown = text.String()
		c.cfg.Saved.Put(knownFile, text.Bytes())
	}
}
