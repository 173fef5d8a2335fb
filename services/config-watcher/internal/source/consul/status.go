package consul

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
)

// State says how a registry does.
type State string

// States of a registry.
const (
	Syncing State = "SYNCING"
	Synced  State = "SYNCED"
	// Limited: not all services are watched at once.
	Limited State = "LIMITED"
	// Held: a reading lacks so much that it stays until a second one lacks it too.
	Held State = "HELD"
	// Timeout: the mesh has stopped waiting for the first reading; it is read on.
	Timeout State = "TIMEOUT"
	// Away: something cannot be read now; what was known last stays.
	Away State = "AWAY"
	// Refused: the newest declaration is refused; what an earlier one reads stays and is followed.
	Refused State = "REFUSED"
	// Ignored: the declaration has no effect.
	Ignored State = "IGNORED"
)

// States are all states.
var States = []State{Syncing, Synced, Limited, Held, Timeout, Away, Refused, Ignored}

// Row tells of one declaration.
type Row struct {
	// Name of the registry. Place is the Secret or the file that declares it.
	Name       string `json:"name"`
	Place      string `json:"place"`
	Address    string `json:"address,omitempty"`
	Datacenter string `json:"datacenter,omitempty"`
	State      State  `json:"state"`
	// SyncedAt is when the registry was last known to be followed; zero if it never was.
	SyncedAt time.Time `json:"synced_at,omitzero"`
	// Services are those that exist and that a rule matches, Objects what became of them. Held are the services and
	// instances that stay although a reading lacks them.
	Services int `json:"services"`
	Objects  int `json:"objects"`
	Held     int `json:"held,omitempty"`
	// Watches are the services that are watched, Polled those that are read in turn, Requests all that were made.
	Watches  int    `json:"watches,omitempty"`
	Polled   int    `json:"polled,omitempty"`
	Requests uint64 `json:"requests,omitempty"`
	// Message says what is the matter and what to do.
	Message  string `json:"message,omitempty"`
	problems object.Problems
}

// textOf joins problems of one declaration.
func textOf(found object.Problems) string {
	texts := make([]string, len(found))
	for i, p := range found {
		if texts[i] = p.Description(); p.Field != "" {
			texts[i] = p.Field + ": " + texts[i]
		}
	}
	return strings.Join(texts, "; ")
}

// List tells of all declarations, sorted by name and place.
func (c *Registries) List() []Row {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := slices.Concat(c.ignored, c.refused)
	for _, r := range c.running {
		out = append(out, r.row())
	}
	slices.SortFunc(out, func(a, b Row) int { return strings.Compare(a.Name+" "+a.Place, b.Name+" "+b.Place) })
	return out
}

// Running tells of the declarations that are in use, one for each registry, sorted by name.
func (c *Registries) Running() []Row {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]Row, 0, len(c.running))
	for _, name := range sorted(c.running) {
		out = append(out, c.running[name].row())
	}
	return out
}

// row tells of the registry.
func (r *reader) row() Row {
	st, following := r.Status(), r.following()
	r.mu.Lock()
	defer r.mu.Unlock()
	row := Row{Name: r.name, Place: r.place, Address: r.decl.address, Datacenter: r.decl.Datacenter, Services: len(r.names),
		Objects: r.objects, Held: r.missed.held(), SyncedAt: r.syncedAt,
		Watches: following.Watches, Polled: following.Polled, Requests: following.Requests}
	switch {
	case len(r.refused) > 0:
		row.State, row.Message = Refused, textOf(r.refused)
	case row.Held > 0:
		row.State, row.Message = Held, textOfWithheld(st.Withheld, r.source())
	case st.Degraded != nil && st.Settled():
		row.State, row.Message = Away, st.Degraded.Error()
	case st.Synced && following.Limited != "":
		row.State, row.Message = Limited, following.Limited
	case st.Synced:
		row.State = Synced
	case !st.LastGood.IsZero():
		row.State, row.SyncedAt = Away, st.LastGood
	case r.overdue:
		row.State = Timeout
		if st.Degraded == nil {
			row.Message = "its first reading takes longer than --registry-timeout; it is read on"
		}
	default:
		row.State = Syncing
	}
	if row.Message == "" && st.Degraded != nil {
		row.Message = st.Degraded.Error()
	}
	return row
}

func (r *reader) following() Following { return (*r.follower.Load()).Status() }

func (r *reader) isOverdue() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.overdue
}

func (r *reader) setOverdue() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.overdue = true
}

// Status tells of the registry as of a source. Problems are about services and instances, at most maxProblems.
func (r *reader) Status() source.Status {
	following := r.following()
	r.mu.Lock()
	defer r.mu.Unlock()
	st := source.Status{Synced: !r.syncedAt.IsZero() || following.Synced && r.names != nil, Degraded: following.Degraded, Objects: r.objects,
		Withheld: r.withheld()}
	if !st.Synced {
		st.LastGood = r.lastGood
	}
	if r.leftOut > 0 {
		st.Problems = append(st.Problems, object.Problem{Location: r.source(), Field: "services",
			Reason: fmt.Sprintf("%d services beyond the first %d are left out", r.leftOut, maxServices),
			Remedy: "match fewer of them by rules"})
	}
	var wrong []string // few of many, and this is called often
	for name, s := range r.services {
		if len(s.problems) > 0 {
			wrong = append(wrong, name)
		}
	}
	slices.Sort(wrong)
	more := 0
	for _, name := range wrong {
		for _, p := range r.services[name].problems {
			if len(st.Problems) >= maxProblems {
				more++
				continue
			}
			st.Problems = append(st.Problems, p)
		}
	}
	if more > 0 {
		st.Problems[maxProblems-1].Reason += fmt.Sprintf(" (and %d more problems of this registry)", more)
	}
	return st
}

// Name implements source.Source.
func (r *reader) Name() string { return r.source() }

// Handle implements source.Source; Registries has the handler.
func (r *reader) Handle(source.Handler) {}

// Run implements source.Source; Registries runs it.
func (r *reader) Run(context.Context) error { return nil }

// HasSynced implements source.Source.
func (r *reader) HasSynced() bool { return r.Status().Synced }

// Refused implements source.Refuser: a service of a registry is no object of a user.
func (r *reader) Refused() []source.Refused { return nil }

// Counts are the numbers of declarations in each state.
func (c *Registries) Counts() map[State]int {
	out := map[State]int{}
	for _, row := range c.List() {
		out[row.State]++
	}
	return out
}

// Sources are the registries that are read, sorted by name.
func (c *Registries) Sources() []source.Source {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]source.Source, 0, len(c.running))
	for _, name := range sorted(c.running) {
		out = append(out, c.running[name])
	}
	return out
}

// collectProblems is called with mu held.
func (c *Registries) collectProblems() {
	c.problems = nil
	for _, row := range c.refused {
		c.problems = append(c.problems, row.problems...)
	}
	for _, r := range c.running {
		c.problems = append(c.problems, r.refused...)
	}
	for _, row := range c.ignored {
		c.problems = append(c.problems, object.Problem{Location: row.Place, Field: "name", Reason: "has no effect: " + row.Message})
	}
	c.problems = c.problems.Sorted()
}

// Name implements source.Source.
func (c *Registries) Name() string { return Name }

// Handle implements source.Source. Events are those of sources "consul/<registry>".
func (c *Registries) Handle(h source.Handler) { c.handler = h }

// HasSynced implements source.Source.
func (c *Registries) HasSynced() bool { return c.Status().Synced }

// Refused implements source.Refuser: a declaration is no object of the mesh.
func (c *Registries) Refused() []source.Refused { return nil }

// Status implements source.Source. It is synced once the mesh need not wait any more: each registry has been read, is
// refused, or has taken longer than Config.Timeout. Problems are about declarations; Sources tells those of registries.
// Objects counts the registries that are read.
func (c *Registries) Status() source.Status {
	denied, unread := false, error(nil)
	if c.secrets != nil {
		secrets := c.secrets.State()
		denied, unread = secrets.Denied, secrets.Unread
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.cfg.Clock.Now()
	st := source.Status{Synced: c.applied || denied || now.Sub(c.started) >= c.cfg.Timeout, Problems: slices.Clone(c.problems),
		Objects: len(c.running), Withheld: c.lost.Withheld(len(c.running))}
	degraded := []error{unread, c.unreadDir}
	restored := !c.applied && len(c.running) > 0
	for _, name := range slices.Sorted(maps.Keys(c.running)) {
		r := c.running[name]
		of, overdue := r.Status(), r.isOverdue()
		if overdue && !of.Settled() {
			err := fmt.Errorf("registry %s was not read within %s (--registry-timeout), the mesh is served without it", name, c.cfg.Timeout)
			degraded = append(degraded, err, of.Degraded)
		}
		st.Synced = st.Synced && (of.Settled() || overdue)
		if restored = restored && !of.LastGood.IsZero(); restored && of.LastGood.After(st.LastGood) {
			st.LastGood = of.LastGood
		}
	}
	if !restored || st.Synced {
		st.LastGood = time.Time{}
	}
	st.Degraded = errors.Join(degraded...)
	return st
}

// sorted lists the keys of a map.
func sorted[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
