package consul

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/consul/catalog"
	"fairlead.dev/services/config-watcher/internal/source/consul/registry"
	"fairlead.dev/services/config-watcher/internal/source/withheld"
)

// What a reading of a registry lacks is judged when the reading is whole: all services that the names lack, and all
// instances that services lack, each as one number. So a catalog that was restored is one judgement, although each
// service is read by itself. What is withheld is instances and services, not objects: a changed declaration applies to
// them, and what is saved for a restart has them.

// instance tells instances of a registry apart.
type instance struct{ service, node, id string }

func keyOf(service string, in *registry.Instance) instance { return instance{service, in.Node, in.ID} }

// missed is what readings of a registry lack. reader.mu guards it.
type missed struct {
	// of are the services of which something is missing.
	of        map[string]struct{}
	services  withheld.Guard[string]
	endpoints withheld.Guard[instance]
	// instances counts those of all services. fresh are services and instances that have come since the last judgement:
	// they are no reason to miss others less.
	instances int
	fresh     struct{ services, instances int }
	// asked is true while the second reading is made.
	asked bool
}

func newMissed() missed { return missed{of: map[string]struct{}{}} }

// held is the number of services and instances that are withheld.
func (m *missed) held() int { return m.services.Count() + m.endpoints.Count() }

// due is when the second reading is; zero if nothing is withheld.
func (m *missed) due() time.Time {
	at := m.services.Due()
	if other := m.endpoints.Due(); at.IsZero() || !other.IsZero() && other.Before(at) {
		at = other
	}
	return at
}

// forget notes that nothing of a service is missing any more.
func (m *missed) forget(name string, s *service) {
	m.services.Forget(name)
	for i := range s.instances {
		m.endpoints.Forget(keyOf(name, &s.instances[i]))
	}
	s.gone, s.absent = nil, false
	delete(m.of, name)
}

// setAbsent takes over whether a reading of the names lacks a service. It is called with mu held.
func (r *reader) setAbsent(name string, s *service, absent bool) {
	if s.absent == absent {
		return
	}
	if s.absent = absent; absent {
		r.missed.of[name] = struct{}{}
		return
	}
	// It is back, and so are its instances but for those that a reading of the service lacks.
	r.missed.services.Forget(name)
	for i := range s.instances {
		if key := keyOf(name, &s.instances[i]); !has(s.gone, key) {
			r.missed.endpoints.Forget(key)
		}
	}
	if len(s.gone) == 0 {
		delete(r.missed.of, name)
	}
}

func has(set map[instance]struct{}, k instance) bool {
	_, is := set[k]
	return is
}

// take takes over a reading of a service: what it lacks stays in force until it is judged. It is called with mu held.
func (r *reader) take(name string, s *service, reading []registry.Instance) {
	lacks := catalog.Missing(s.instances, reading)
	r.missed.fresh.instances += len(reading) + len(lacks) - len(s.instances)
	r.missed.instances += len(reading) + len(lacks) - len(s.instances)
	s.gone = make(map[instance]struct{}, len(lacks))
	for i := range lacks {
		s.gone[keyOf(name, &lacks[i])] = struct{}{}
	}
	for i := range reading {
		r.missed.endpoints.Forget(keyOf(name, &reading[i]))
	}
	if s.instances = reading; len(lacks) > 0 {
		s.instances = catalog.Merged(reading, lacks)
	}
	r.dirty[shardOf(name)] = true
	if len(lacks) > 0 {
		r.missed.of[name] = struct{}{}
	} else if !s.absent {
		delete(r.missed.of, name)
	}
}

// Whole implements Handler. While something is withheld, only the second reading decides about what is missing.
func (r *reader) Whole(certain bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := &r.missed
	if m.held() > 0 && (!m.asked || !certain) {
		return
	}
	if m.asked = false; len(m.of) > 0 {
		r.judge()
	}
	m.fresh.services, m.fresh.instances = 0, 0
}

// judge removes what is missing, or withholds it. It is called with mu held.
func (r *reader) judge() {
	m, now := &r.missed, r.cfg.Clock.Now()
	var services []string
	var endpoints []instance
	for _, name := range sorted(m.of) {
		s := r.services[name]
		if s.absent {
			services = append(services, name)
		}
		for i := range s.instances {
			if key := keyOf(name, &s.instances[i]); s.absent || has(s.gone, key) {
				endpoints = append(endpoints, key)
			}
		}
	}
	before := m.held()
	m.services.Reading(withheld.Reading[string]{At: now, InForce: len(r.services) - m.fresh.services, Missing: services})
	m.endpoints.Reading(withheld.Reading[instance]{At: now, InForce: m.instances - m.fresh.instances, Missing: endpoints})
	r.removeMissing()
	switch held := m.held(); {
	case held > before:
		r.cfg.Log.Warn("much is missing in a reading of a registry: it stays in force until a second reading says the same",
			"source", r.source(), "services", len(services), "endpoints", len(endpoints), "until", m.due(), "remedy",
			"if it was deregistered on purpose, `fairlead sources accept "+r.source()+"` ends the wait; otherwise bring Consul's data back")
	case before > 0:
		r.cfg.Log.Warn("a second reading of a registry has been made", "source", r.source(), "services_missing", len(services),
			"endpoints_missing", len(endpoints), "withheld", held)
	}
}

// removeMissing removes what is missing and not withheld. It is called with mu held.
func (r *reader) removeMissing() {
	m := &r.missed
	for _, name := range sorted(m.of) {
		s := r.services[name]
		kept := func(in registry.Instance) bool { return m.endpoints.Has(keyOf(name, &in)) }
		switch {
		case s.absent && !m.services.Has(name) && !slices.ContainsFunc(s.instances, kept):
			r.drop(name, s)
		case s.absent: // its instances go with it
		default:
			before := len(s.instances)
			s.instances = slices.DeleteFunc(slices.Clone(s.instances), func(in registry.Instance) bool {
				return has(s.gone, keyOf(name, &in)) && !kept(in)
			})
			for key := range s.gone {
				if !m.endpoints.Has(key) {
					delete(s.gone, key)
				}
			}
			if len(s.instances) == before {
				continue
			}
			m.instances -= before - len(s.instances)
			r.dirty[shardOf(name)] = true
			if len(s.gone) == 0 {
				delete(m.of, name)
			}
			r.update(name, s)
		}
	}
}

// confirm asks for the second reading when it is due. It is called without mu, which readings wait for.
func (r *reader) confirm(now time.Time) {
	r.mu.Lock()
	due := r.missed.due()
	ask := !due.IsZero() && !now.Before(due) && !r.missed.asked
	var services []string
	if ask {
		services = sorted(r.missed.of)
	}
	r.mu.Unlock()
	if !ask {
		return
	}
	(*r.follower.Load()).Refresh(services...)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missed.asked = true
}

// Accept implements source.Withholder; it counts services and endpoints.
func (r *reader) Accept() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	removed := len(r.missed.services.Accept()) + len(r.missed.endpoints.Accept())
	if removed > 0 {
		r.cfg.Log.Warn("an administrator has accepted that services are gone, they are removed", "source", r.source(), "removed", removed)
		r.missed.asked = false
		r.removeMissing()
	}
	return removed
}

// withheld tells what is withheld. It is called with mu held.
func (r *reader) withheld() (out []source.Withheld) {
	add := func(what string, inForce, n int, since time.Time) {
		if n > 0 {
			out = append(out, source.Withheld{What: what, Objects: n, InForce: inForce, Since: since, Until: since.Add(withheld.Wait)})
		}
	}
	n, since := r.missed.endpoints.Held()
	add("endpoints", r.missed.instances, n, since)
	n, since = r.missed.services.Held()
	add("services", len(r.services), n, since)
	return out
}

// withhold takes over which registries are declared after so many lists of the Secrets, and returns the other ones that
// are read on: those of Secrets that a list lacks. known are registries of the last run. It is called with mu held.
func (c *Registries) withhold(wanted map[string]written, known map[string]bool, lists uint64) map[string]bool {
	all := map[string]bool{}
	for name, secret := range known {
		all[name] = secret
	}
	for name, r := range c.running {
		all[name] = r.decl.bySecret
	}
	maps.DeleteFunc(all, func(_ string, secret bool) bool { return !secret })
	now := c.cfg.Clock.Now()
	keep, more := c.lost.Keep(sorted(all), func(name string) bool { _, is := wanted[name]; return is }, lists, now)
	if more {
		c.cfg.Log.Warn("a list of Secrets lacks registries: they are read on until a second list says the same", "registries", keep, "until",
			now.Add(withheld.Wait), "remedy",
			"if they were deleted on purpose, `fairlead sources accept "+Name+"` ends the wait; otherwise create the Secrets again")
	}
	return keep
}

// event notes the registry whose Secret is gone.
func (c *Registries) event(before, now *corev1.Secret) {
	if before == nil || now != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost.Deleted(before.Name)
}

// Relist lists the Secrets again, because they may be others than the watch says.
func (c *Registries) Relist() {
	if c.secrets != nil {
		c.secrets.Relist()
	}
}

// Accept implements source.Withholder; it counts registries.
func (c *Registries) Accept() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer notify.Wake(c.wake)
	return c.lost.Accept()
}

// textOfWithheld says what is withheld, for people.
func textOfWithheld(all []source.Withheld, name string) string {
	parts := make([]string, len(all))
	for i, w := range all {
		parts[i] = w.String()
	}
	return strings.Join(parts, ", ") + " are missing in what was read last, and stay until a second reading; `fairlead sources accept " +
		name + "` ends the wait"
}
