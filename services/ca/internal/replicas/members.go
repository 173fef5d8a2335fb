package replicas

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/services/ca/internal/holders"
)

const (
	// silentAfter is how long a replica may be away before it is named among the holders.
	silentAfter = 30 * time.Second
	// lateAfter is how old a status may be before nobody relies on it.
	lateAfter = 3 * statusEvery
	// maxSkew is how far the clocks of two replicas may differ.
	maxSkew = 30 * time.Second
	// saveEvery is how often it is written down when replicas were last heard of.
	saveEvery = 10 * time.Minute
	// maxMembers bounds the replicas that are remembered.
	maxMembers = 256
)

// members are the other replicas. It is pure: the time comes with each call.
type members struct {
	ttl time.Duration
	// addresses are those of the last lookup, nil before the first. own are those of this replica.
	addresses, own map[string]bool
	byName         map[string]*member
	// twin is the address of another process with this replica's name.
	twin      string
	unsaved   bool
	savedLast time.Time
}

// member is another replica.
type member struct {
	name, address string
	// run is that of the process, earlier says that there was one before. knows says that it has heard of an earlier
	// run of this replica, asking that it has no journal either, and cannot know.
	run                    string
	earlier, knows, asking bool
	heard                  time.Time
	signer                 uint64
	version                string
	// ahead is how far its clock is ahead of this replica's.
	ahead   time.Duration
	problem string
	folded  []holders.Folded
	// connected says that a stream is open, complete that everything has come on it.
	connected, complete bool
}

func newMembers(ttl time.Duration) members {
	return members{ttl: ttl, own: map[string]bool{}, byName: map[string]*member{}}
}

// remember adds a replica of an earlier run.
func (m *members) remember(name string, of known) {
	m.byName[name] = &member{name: name, heard: of.Heard, run: of.Run}
}

// looked takes the addresses that there are, and forgets replicas that are gone for longer than any certificate lives.
func (m *members) looked(addresses map[string]bool, now time.Time) {
	m.addresses = addresses
	maps.DeleteFunc(m.own, func(address string, _ bool) bool { return !addresses[address] })
	if !addresses[m.twin] {
		m.twin = ""
	}
	for name, of := range m.byName {
		if !addresses[of.address] && now.Sub(of.heard) > m.ttl {
			delete(m.byName, name)
			m.unsaved = true
		}
	}
}

// hear takes a status that came from an address.
func (m *members) hear(address string, status *member, now time.Time) {
	before := m.byName[status.name]
	if before == nil {
		if len(m.byName) >= maxMembers {
			return
		}
		m.unsaved = true
	} else {
		status.earlier = before.earlier || before.run != status.run
		status.complete = before.complete && before.address == address
	}
	status.address, status.heard, status.connected = address, now, true
	m.byName[status.name] = status
}

// knew tells whether a replica has run before.
func (m *members) knew(name, run string) bool {
	of := m.byName[name]
	return of != nil && (of.earlier || of.run != run)
}

// told tells whether other replicas, all that there are, have said whether this one has run before, at least one of
// which can know. Where all are without a journal, as after a restore, none can.
func (m *members) told() bool {
	n := 0
	for address := range m.addresses {
		if m.own[address] {
			continue
		}
		ok := false
		for _, of := range m.byName {
			if of.address == address && of.connected {
				ok = true
				if !of.asking {
					n++
				}
			}
		}
		if !ok {
			return false
		}
	}
	return n > 0
}

// completed says that everything has come from an address.
func (m *members) completed(address string) {
	for _, of := range m.byName {
		if of.address == address {
			of.complete = true
		}
	}
}

// lost says that the stream from an address has ended.
func (m *members) lost(address string) {
	delete(m.own, address)
	if m.twin == address {
		m.twin = ""
	}
	for _, of := range m.byName {
		if of.address == address {
			of.connected, of.complete = false, false
		}
	}
}

// sorted are the members by name.
func (m *members) sorted() []*member {
	var out []*member
	for _, name := range slices.Sorted(maps.Keys(m.byName)) {
		out = append(out, m.byName[name])
	}
	return out
}

// silent are those that have not been heard of for silentAfter.
func (m *members) silent(now time.Time) []*member {
	return slices.DeleteFunc(m.sorted(), func(of *member) bool { return now.Sub(of.heard) <= silentAfter })
}

// problems are what keeps the members from being known well enough. A member that is silent is none of them: it is
// among the holders, where an operator can accept it.
func (m *members) problems(now time.Time) []string {
	var out []string
	if m.addresses == nil {
		return []string{"the other replicas have not been looked up yet"}
	}
	if len(m.addresses) == 0 {
		out = append(out, "--peers: no replica has been found, not even this one; correct the name, or wait for its Service")
	}
	if m.twin != "" {
		out = append(out, fmt.Sprintf("the process at %s has the same name as this replica; give each its own", m.twin))
	}
	answered := map[string]bool{m.twin: true}
	for _, of := range m.sorted() {
		answered[of.address] = true
		if p := of.trouble(now); p != "" && now.Sub(of.heard) <= silentAfter {
			out = append(out, p)
		}
	}
	for _, address := range slices.Sorted(maps.Keys(m.addresses)) {
		if !m.own[address] && !answered[address] {
			out = append(out, fmt.Sprintf("the replica at %s has not answered yet; look at its log if it does not within a minute", address))
		}
	}
	return out
}

// trouble is why the replica's word does not count now.
func (of *member) trouble(now time.Time) string {
	switch {
	case now.Sub(of.heard) > silentAfter:
		return fmt.Sprintf("replica %s has not been heard of since %s", of.name, of.heard.UTC().Format(time.RFC3339))
	case !of.connected:
		return fmt.Sprintf("the connection to replica %s is lost", of.name)
	case now.Sub(of.heard) > lateAfter:
		return fmt.Sprintf("replica %s is late: nothing has come from it for %s", of.name, now.Sub(of.heard).Round(time.Second))
	case !of.complete:
		return fmt.Sprintf("replica %s has not sent all that it knows yet", of.name)
	case of.ahead.Abs() > maxSkew:
		return fmt.Sprintf("clock disagrees: that of replica %s is %s ahead of this one's; correct the clocks of their machines", of.name,
			of.ahead.Round(time.Second))
	case of.problem != "":
		return fmt.Sprintf("replica %s: %s", of.name, of.problem)
	}
	return ""
}

// folded are the certificates that other replicas know by their number only.
func (m *members) folded(now time.Time, signer func(uint64) bool) []caapi.Holder {
	var out []caapi.Holder
	for _, of := range m.sorted() {
		for _, f := range of.folded {
			if f.Until.After(now) && signer(f.Signer) {
				out = append(out, caapi.Holder{
					Name:     fmt.Sprintf("%d certificates of %s from signer %d at replica %s", f.Count, f.Identity, f.Signer, of.name),
					Identity: f.Identity, NotAfter: f.Until, Signer: f.Signer,
				})
			}
		}
	}
	return out
}

func (m *members) replicas(now time.Time) []caapi.Replica {
	var out []caapi.Replica
	for _, of := range m.sorted() {
		out = append(out, caapi.Replica{Name: of.name, Signer: of.signer, Seen: of.heard, Problem: of.trouble(now)})
	}
	return out
}

func (m *members) versions() map[string]string {
	out := map[string]string{}
	for name, of := range m.byName {
		out[name] = of.version
	}
	return out
}

// changed tells whether what is known is to be written down again.
func (m *members) changed(now time.Time) bool {
	return m.unsaved || len(m.byName) > 0 && now.Sub(m.savedLast) >= saveEvery
}

func (m *members) saved(now time.Time) { m.unsaved, m.savedLast = false, now }

// known are the names, and what is to be remembered of each.
func (m *members) known() map[string]known {
	out := map[string]known{}
	for name, of := range m.byName {
		out[name] = known{of.heard, of.run}
	}
	return out
}
