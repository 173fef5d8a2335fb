// Package lanes has what queues need in which changes of endpoints overtake those of configuration: Latest keeps a lane
// of endpoints short, and Pace divides configuration into batches, so that endpoints wait for one batch at most. The
// queues are config-watcher's pipeline and xds-server's configsource; what may overtake what is theirs to say. Neither
// type is safe for concurrent use.
package lanes

import "time"

// Latest is a list of changes that keeps the newest of each key, in the place of its first. The zero value is empty.
type Latest[K comparable, C any] struct {
	// List has each key once. After the first Merge only Latest changes it.
	List  []C
	place map[K]int
}

// Merge adds newer changes, or replaces those of the same keys.
func (l *Latest[K, C]) Merge(key func(C) K, newer []C) {
	if l.place == nil {
		l.place = make(map[K]int, len(l.List)+len(newer))
		for i, c := range l.List {
			l.place[key(c)] = i
		}
	}
	for _, c := range newer {
		if k := key(c); !l.Replace(k, c) {
			l.place[k] = len(l.List)
			l.List = append(l.List, c)
		}
	}
}

// Replace replaces the change of a key, and reports whether there is one.
func (l *Latest[K, C]) Replace(k K, c C) bool {
	at, ok := l.place[k]
	if ok {
		l.List[at] = c
	}
	return ok
}

// endpointsActiveFor is how long after a change of endpoints the next one is expected.
const endpointsActiveFor = time.Second

// Pace says how many changes of configuration are applied at once. Zero Max means no limit.
type Pace struct {
	// Short is about how long a batch takes while endpoints change, Long otherwise.
	Short, Long time.Duration
	// Min and Max bound the changes of a batch, whatever they cost. A single submission may have more.
	Min, Max int
	// Cost is the measured time per change, before the first batch an assumed one. Memory is the weight of the former
	// measurements, of which a new one has 1.
	Cost   time.Duration
	Memory int

	endpointsAt time.Time
}

// Endpoints says that endpoints change now.
func (p *Pace) Endpoints(now time.Time) { p.endpointsAt = now }

// Active reports whether endpoints have changed lately.
func (p *Pace) Active(now time.Time) bool { return now.Sub(p.endpointsAt) < endpointsActiveFor }

// Limit is how many changes the next batch may have. It may take as long as spent, if that is longer than its time.
func (p *Pace) Limit(now time.Time, spent time.Duration) int {
	budget := p.Long
	if p.Active(now) {
		budget = p.Short
	}
	n := max(int(max(budget, spent)/max(p.Cost, 1)), p.Min)
	if p.Max > 0 {
		n = min(n, p.Max)
	}
	return n
}

// Took measures a batch. One that took long because the process had to wait says little.
func (p *Pace) Took(changes int, took time.Duration) {
	if changes > 0 {
		memory := time.Duration(p.Memory)
		p.Cost = (memory*p.Cost + min(took/time.Duration(changes), 4*p.Cost)) / (memory + 1)
	}
}
