// Package vip allocates addresses for hosts that have none, from Istio's networks for ServiceEntries. Package normalise
// calls it while it rebuilds Services.
package vip

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Istio's networks of allocated addresses.
var (
	vip4 = netip.MustParsePrefix("240.240.0.0/16").Addr().As4()
	vip6 = netip.MustParsePrefix("2001:2::/48").Addr().As16()
)

const (
	// vipSlots is a prime, so that every sequence of attempts visits all slots.
	vipSlots = 65011
	// lastOctets is the number of last octets in use: 1 to 254, neither network nor broadcast addresses.
	lastOctets = 254
)

// Host is a hostname of one namespace.
type Host struct{ Namespace, Hostname string }

// Table allocates an IPv4 and an IPv6 address for every host that needs one. The allocation follows from the set of
// hosts alone: each host tries the slots of a sequence made from its name, and the older host wins a slot. So a new
// host moves no older one, and all replicas agree after any restart. Hosts without a creation time, which files have,
// are ordered by name. It is not safe for concurrent use.
type Table struct {
	created map[Host]time.Time
	owners  map[uint32]Host
	// attempt is the index in its sequence of the slot that a host has.
	attempt map[Host]uint32
	// moved are hosts whose address may have changed since the last TakeMoved.
	moved map[Host]struct{}
	// stale is true if a host was dropped whose slot others may take over.
	stale   bool
	retried int
}

// New returns an empty table.
func New() *Table {
	return &Table{created: map[Host]time.Time{}, owners: map[uint32]Host{}, attempt: map[Host]uint32{}, moved: map[Host]struct{}{}}
}

// compare orders hosts by age, and those of one age by name.
func (v *Table) compare(a, b Host) int {
	return cmp.Or(v.created[a].Compare(v.created[b]), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Hostname, b.Hostname))
}

// Want records that a host needs an address.
func (v *Table) Want(h Host, created time.Time) {
	if had, ok := v.created[h]; ok {
		if had.Equal(created) {
			return
		}
		v.Drop(h)
	}
	v.created[h] = created
	v.place(h, 0)
}

// Drop records that a host needs no address any more.
func (v *Table) Drop(h Host) {
	if _, ok := v.created[h]; !ok {
		return
	}
	if n, ok := v.attempt[h]; ok {
		delete(v.owners, attemptsOf(h).at(n))
		delete(v.attempt, h)
		if n > 0 {
			v.retried--
		}
		v.stale = v.stale || v.retried > 0
	}
	delete(v.created, h)
	v.moved[h] = struct{}{}
}

// place gives h the first slot that it wins, from its n-th attempt on, and then goes on with the host that h displaced.
// The result does not depend on the order in which hosts come.
func (v *Table) place(h Host, n uint32) {
	for tries := attemptsOf(h); n < vipSlots; n++ {
		at := tries.at(n)
		other, taken := v.owners[at]
		if taken && v.compare(h, other) >= 0 {
			continue
		}
		v.owners[at], v.attempt[h] = h, n
		v.moved[h] = struct{}{}
		if n > 0 {
			v.retried++
		}
		if !taken {
			return
		}
		if n = v.attempt[other]; n > 0 {
			v.retried--
		}
		delete(v.attempt, other)
		v.moved[other] = struct{}{}
		h, tries = other, attemptsOf(other)
	}
}

// TakeMoved returns the hosts whose address may have changed since its last call.
func (v *Table) TakeMoved() map[Host]struct{} {
	if v.stale {
		hosts := slices.SortedFunc(maps.Keys(v.created), v.compare)
		before, moved := v.attempt, v.moved
		v.owners, v.attempt, v.moved, v.stale, v.retried = map[uint32]Host{}, map[Host]uint32{}, map[Host]struct{}{}, false, 0
		for _, h := range hosts {
			v.place(h, 0)
			was, had := before[h]
			if is, has := v.attempt[h]; was != is || had != has {
				moved[h] = struct{}{}
			}
		}
		v.moved = moved
	}
	out := v.moved
	v.moved = map[Host]struct{}{}
	return out
}

// Addresses returns the host's IPv4 and IPv6 address; none if it needs none, or if all slots belong to older hosts.
func (v *Table) Addresses(h Host) []string {
	n, ok := v.attempt[h]
	if !ok {
		return nil
	}
	at := attemptsOf(h).at(n)
	four := vip4
	four[2], four[3] = byte(at/lastOctets), byte(at%lastOctets+1)
	six, sum := vip6, digest(h)
	copy(six[8:], sum[8:16])
	return []string{netip.AddrFrom4(four).String(), netip.AddrFrom16(six).String()}
}

func digest(h Host) [sha256.Size]byte {
	return sha256.Sum256([]byte(strings.Join([]string{h.Namespace, h.Hostname}, "/")))
}

// attempts is the sequence of slots that a host tries.
type attempts struct{ first, step uint32 }

func attemptsOf(h Host) attempts {
	sum := digest(h)
	return attempts{binary.BigEndian.Uint32(sum[0:]) % vipSlots, binary.BigEndian.Uint32(sum[4:])%(vipSlots-1) + 1}
}

func (a attempts) at(n uint32) uint32 {
	return uint32((uint64(a.first) + uint64(n)*uint64(a.step)) % vipSlots) //nolint:gosec // less than vipSlots
}
