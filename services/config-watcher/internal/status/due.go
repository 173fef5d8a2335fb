package status

import (
	"maps"
	"slices"

	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
)

// due is what the next round has to look at: a round looks at what may have changed, however many objects there are.
type due struct {
	// changed are objects of which something has changed: the object itself, what package gatewayapi says of it, its
	// findings, or that it is refused.
	changed map[object.Key]struct{}
	// gone are versions in force that are not any more.
	gone []ID
	// unsettled are the entries that the proxies may change the status of.
	unsettled map[object.Key]*entry
	// watched are the entries that every round looks at, see isWatched.
	watched map[object.Key]*entry

	// fleet, refused and owner are those of the round before.
	fleet   *fleetState
	refused map[ID]*refusal
	owner   int
}

func newDue() due {
	return due{changed: map[object.Key]struct{}{}, unsettled: map[object.Key]*entry{}, watched: map[object.Key]*entry{}}
}

func (d *due) add(k object.Key) { d.changed[k] = struct{}{} }

// isWatched reports whether objects of a kind are looked at in every round, because their status depends on each other,
// on the proxies that each selects, or on keys, which change without a notice. They are few.
func (t *Tracker) isWatched(k object.Key) bool {
	switch k.Group {
	case kinds.GroupNetworking:
		return k.Kind == "Gateway"
	case kinds.GroupSecurity:
		return t.cfg.Keys != nil && k.Kind == "RequestAuthentication"
	}
	return isFew(k)
}

// forget drops the entry of an object, if there is one.
func (t *Tracker) forget(k object.Key, e *entry) {
	if e == nil {
		return
	}
	delete(t.entries, k)
	delete(t.due.unsettled, k)
	delete(t.due.watched, k)
	t.due.gone = append(t.due.gone, ID{e.object.Source, k})
}

// takeDue lists the entries that a round has to look at.
func (t *Tracker) takeDue(f *fleetState, refused map[ID]*refusal) map[object.Key]*entry {
	d := &t.due
	for _, k := range t.cfg.Findings.TakeChanged() {
		d.add(k)
	}
	for id, r := range refused {
		if !r.equal(d.refused[id]) {
			d.add(id.Key)
		}
	}
	for id := range d.refused {
		if refused[id] == nil {
			d.add(id.Key)
		}
	}
	owner := t.cfg.Owner.version()
	blame := d.fleet == nil || !slices.Equal(f.blamed, d.fleet.blamed)
	if blame || owner != d.owner { // seldom
		for k, e := range t.entries {
			if blame && len(e.hosts) > 0 || owner != d.owner && isAPI(k) {
				d.add(k)
			}
		}
	}
	out := maps.Clone(d.watched)
	if !f.same(d.fleet) {
		maps.Copy(out, d.unsettled)
		d.unsettled = map[object.Key]*entry{} // a new one: going through a map takes as long as it ever was large
	}
	for k := range d.changed {
		if e := t.entries[k]; e != nil {
			out[k] = e
		}
	}
	d.changed, d.refused, d.owner, d.fleet = map[object.Key]struct{}{}, refused, owner, f
	return out
}

// keep remembers which of the entries that a round has looked at the proxies may change the status of.
func (t *Tracker) keep(looked map[object.Key]*entry) {
	for k, e := range looked {
		set(t.due.unsettled, k, e, e.latched == nil || e.blamed)
	}
}

// rows are those of all versions.
type rows struct {
	// inForce are those of the versions in force. others are those of other versions, and come before them: the newest
	// state of the sources may be newer than the revision.
	inForce, others map[ID]*Row
	// awaited are the versions in force that not every proxy has acknowledged yet, or that were rejected.
	awaited map[ID]struct{}
	// changed are those that have changed, or have to be offered again.
	changed map[ID]struct{}
}

func newRows() rows {
	return rows{inForce: map[ID]*Row{}, others: map[ID]*Row{}, awaited: map[ID]struct{}{}, changed: map[ID]struct{}{}}
}

// get is the row of a version; nil if there is none.
func (r *rows) get(id ID) *Row {
	if row := r.others[id]; row != nil {
		return row
	}
	return r.inForce[id]
}

func (r *rows) all() []*Row {
	out := make([]*Row, 0, len(r.inForce)+len(r.others))
	for id, row := range r.inForce {
		if r.others[id] == nil {
			out = append(out, row)
		}
	}
	return slices.AppendSeq(out, maps.Values(r.others))
}

// put sets the row of a version in force; nil if there is none.
func (r *rows) put(id ID, row *Row) {
	if r.inForce[id] == row {
		return
	}
	set(r.inForce, id, row, row != nil)
	set(r.awaited, id, struct{}{}, row != nil && row.awaited())
	r.again(id)
}

// putOthers sets the rows of all versions that are not in force. Equal ones stay, so that equal statuses are one.
func (r *rows) putOthers(others map[ID]*Row) {
	for id, row := range others {
		if old := r.others[id]; old != nil && old.equal(row) {
			others[id] = old
		} else {
			r.again(id)
		}
	}
	for id := range r.others {
		if others[id] == nil {
			r.again(id)
		}
	}
	r.others = others
}

// again has a row offered.
func (r *rows) again(id ID) { r.changed[id] = struct{}{} }

// takeChanged are the rows to be offered; nil for a version that has none any more.
func (r *rows) takeChanged() map[ID]*Row {
	out := make(map[ID]*Row, len(r.changed))
	for id := range r.changed {
		out[id] = r.get(id)
	}
	r.changed = map[ID]struct{}{}
	return out
}
