// Package gatewayname looks up the host names of east-west gateways, because endpoints of proxies are addresses: those
// of load balancers that have no IP address, and those in the entry meshNetworks. The table of keys submits changes to
// Table, which passes them on to the next stage, and adds for each name an object with what it resolves to
// (normalise.KindGatewayName).
package gatewayname

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"fairlead.dev/services/config-watcher/internal/normalise/networks"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source/lastgood"
	"fairlead.dev/services/config-watcher/internal/validate/meshconfig"
)

const (
	// DefaultEvery is how often a name is looked up. Istio does so when its records expire, and not more often.
	DefaultEvery = 30 * time.Second
	// firstPause is the pause after a first failure; it doubles up to Config.Every.
	firstPause = time.Second
	// timeout bounds one look-up.
	timeout = 5 * time.Second
	// maxNames bounds the names, maxAddresses the addresses of one, and maxLookups the look-ups at once.
	maxNames     = 256
	maxAddresses = 32
	maxLookups   = 8
	// savedFile keeps the last good answers through restarts.
	savedFile = "gateway-names.json"
)

// Resolver asks DNS; *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Config of a Table. Saved may be nil; all other fields are required.
type Config struct {
	Resolver Resolver
	// Every is how often a name is looked up; 0 means never, so that gateways have no addresses by names.
	Every time.Duration
	// Domain is the DNS suffix of services.
	Domain string
	Saved  *lastgood.Dir
	// Next receives the changes, in order. It must not block.
	Next  func(context.Context, []normalise.Change)
	Clock clock.Clock
	Log   *slog.Logger
}

// Table holds the names and their addresses. It is safe for concurrent use.
type Table struct {
	cfg    Config
	wake   chan struct{}
	places chan struct{}

	mu sync.Mutex
	// services are those whose load balancers have names, stated what the entry meshNetworks names.
	services map[object.Key]service
	stated   stated
	entries  map[string]*entry
	// saved are the answers on disk.
	saved map[string][]string
	// full is true while there are more than maxNames.
	full bool
}

// service is a Service with names.
type service struct {
	host    string
	gateway bool // by its label
	names   []string
}

// stated are the host names in the entry meshNetworks: of gateways, and of Services that are gateways.
type stated struct{ names, services []string }

// entry is a wanted name.
type entry struct {
	// addresses are the last good answer, told is true once it has been passed on.
	addresses []string
	told      bool
	// tried is true after the first look-up, and while an answer from before the restart counts.
	tried, running bool
	failures       int
	err            error
	next           time.Time
}

// NewTable returns an empty table; Run looks names up.
func NewTable(c Config) *Table {
	t := &Table{cfg: c, wake: make(chan struct{}, 1), places: make(chan struct{}, maxLookups), services: map[object.Key]service{},
		entries: map[string]*entry{}, saved: map[string][]string{}}
	if c.Saved == nil {
		return t
	}
	raw, _, err := c.Saved.Get(savedFile)
	if err == nil {
		err = json.Unmarshal(raw, &t.saved)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.Log.Warn("last good addresses of gateways cannot be read; they are looked up", "error", err)
		t.saved = map[string][]string{}
	}
	return t
}

// Submit takes over the names in the changes, and passes the changes on to Config.Next with what is known of names that
// come, and without those that go.
func (t *Table) Submit(ctx context.Context, changes []normalise.Change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	changed := false
	for _, c := range changes {
		switch {
		case c.Key.Group == "" && c.Key.Kind == "Service":
			changed = t.takeService(c) || changed
		case kinds.IsMeshConfig(c.Key):
			t.stated, changed = statedBy(c.Object), true
		}
	}
	if changed && t.cfg.Every > 0 {
		changes = append(slices.Clip(changes), t.admit()...)
		notify.Wake(t.wake)
	}
	t.cfg.Next(ctx, changes)
}

// takeService takes over a Service, and reports whether it has or had names.
func (t *Table) takeService(c normalise.Change) bool {
	_, had := t.services[c.Key]
	delete(t.services, c.Key)
	if c.Object == nil {
		return had
	}
	body, ok := c.Object.Body.(*corev1.Service)
	if !ok {
		return had
	}
	names := networks.Names(body)
	if len(names) == 0 {
		return had
	}
	t.services[c.Key] = service{host: normalise.Host(c.Key.Name, c.Key.Namespace, t.cfg.Domain),
		gateway: c.Object.Labels[networks.Label] != "", names: names}
	return true
}

// statedBy reads the names in a mesh configuration. Sources have refused one that cannot be read.
func statedBy(o *object.Object) stated {
	var out stated
	if o == nil {
		return out
	}
	body, _ := o.Body.(*corev1.ConfigMap)
	if body == nil {
		return out
	}
	parsed, _, _ := meshconfig.ParseNetworks("", []byte(body.Data[kinds.NetworksKey]))
	for _, n := range parsed.GetNetworks() {
		for _, g := range n.GetGateways() {
			if host := g.GetRegistryServiceName(); host != "" {
				out.services = append(out.services, strings.ToLower(host))
			}
			if _, err := netip.ParseAddr(g.GetAddress()); err != nil && g.GetAddress() != "" {
				out.names = append(out.names, networks.Name(g.GetAddress()))
			}
		}
	}
	return out
}

// wanted lists the names, each once, in order: the first maxNames.
func (t *Table) wanted() []string {
	all := slices.Clone(t.stated.names)
	for _, s := range t.services {
		if s.gateway || slices.Contains(t.stated.services, s.host) {
			all = append(all, s.names...)
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	if full := len(all) > maxNames; full != t.full {
		t.full = full
		if full {
			t.cfg.Log.Warn("too many host names of gateways: those that come last in the order of names have no addresses; give the gateways "+
				"addresses, or fewer names", "names", len(all), "at_most", maxNames)
		}
	}
	return all[:min(len(all), maxNames)]
}

// admit makes the entries those of the wanted names, and returns what that changes.
func (t *Table) admit() (changes []normalise.Change) {
	wanted := t.wanted()
	for _, name := range slices.Sorted(maps.Keys(t.entries)) {
		if _, found := slices.BinarySearch(wanted, name); !found {
			if t.entries[name].told {
				changes = append(changes, normalise.Change{Key: normalise.GatewayNameKey(name)})
			}
			delete(t.entries, name)
			delete(t.saved, name)
		}
	}
	for _, name := range wanted {
		if t.entries[name] != nil {
			continue
		}
		e := &entry{}
		t.entries[name] = e
		if before := t.saved[name]; len(before) > 0 {
			e.addresses, e.tried = before, true
			changes = append(changes, e.change(name))
		}
	}
	return changes
}

// change tells the addresses of an entry.
func (e *entry) change(name string) normalise.Change {
	e.told = true
	key := normalise.GatewayNameKey(name)
	return normalise.Change{Key: key, Object: &object.Object{Key: key, Source: "gateway names",
		Body: &object.GatewayName{Name: name, Addresses: e.addresses}}}
}

// Settled reports whether every name was looked up once, or is known from before the restart. The first revision waits
// for it, so that a restart takes no gateway from proxies.
func (t *Table) Settled() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.entries {
		if !e.tried {
			return false
		}
	}
	return true
}
