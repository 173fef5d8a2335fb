package vip

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"
)

func hostsOf(n int) map[Host]time.Time {
	out := map[Host]time.Time{}
	for i := range n {
		out[Host{fmt.Sprint("ns", i%7), fmt.Sprintf("h%d.example.com", i)}] = time.Unix(int64(i/3), 0)
	}
	return out
}

func allocated(v *Table) map[Host]string {
	v.TakeMoved()
	out := map[Host]string{}
	for h := range v.created {
		out[h] = fmt.Sprint(v.Addresses(h))
	}
	return out
}

func filled(hosts map[Host]time.Time) *Table {
	v := New()
	for h, at := range hosts { // in another order each time
		v.Want(h, at)
	}
	return v
}

// TestVIPsFollowFromTheHosts: the remaining hosts have the same addresses in whatever order hosts came and went. Each
// address is unique and in Istio's networks.
func TestVIPsFollowFromTheHosts(t *testing.T) {
	hosts := hostsOf(20_000) // enough that many want the same
	want := allocated(filled(hosts))
	seen := map[string]bool{}
	for h, text := range want {
		if seen[text] {
			t.Fatalf("%v shares %s", h, text)
		}
		seen[text] = true
		var four, six string
		if _, err := fmt.Sscanf(text, "[%s %s", &four, &six); err != nil {
			t.Fatal(text, err)
		}
		ip := netip.MustParseAddr(four)
		if last := ip.As4()[3]; !netip.MustParsePrefix("240.240.0.0/16").Contains(ip) || last == 0 || last == 255 || seen[four] {
			t.Fatalf("%v has %s", h, four)
		}
		seen[four] = true
		if !netip.MustParsePrefix("2001:2::/48").Contains(netip.MustParseAddr(six[:len(six)-1])) {
			t.Fatalf("%v has %s", h, six)
		}
	}
	v := filled(hosts)
	for h, at := range hostsOf(25_000) {
		if _, ok := hosts[h]; !ok {
			v.Want(h, at.Add(time.Hour))
			hosts[h] = at
			if rand.IntN(100) == 0 {
				v.TakeMoved()
			}
		}
	}
	full := allocated(v)
	for h := range want {
		if full[h] != want[h] {
			t.Errorf("%v moved from %s to %s because of younger hosts", h, want[h], full[h])
		}
		delete(hosts, h)
	}
	for h := range hosts {
		v.Drop(h)
	}
	if !maps.Equal(allocated(v), want) {
		t.Error("what came and went left a trace")
	}
}

func TestMoreHostsThanAddresses(t *testing.T) {
	v := New()
	for i := range vipSlots + 2 {
		v.Want(Host{"a", fmt.Sprint(i)}, time.Unix(int64(i), 0))
	}
	without := 0
	for i := range vipSlots + 2 {
		if v.Addresses(Host{"a", fmt.Sprint(i)}) == nil {
			without++
		}
	}
	if without != 2 || v.Addresses(Host{"a", "0"}) == nil {
		t.Errorf("%d hosts have no address", without)
	}
	v.Drop(Host{"a", "7"})
	if moved := v.TakeMoved(); len(moved) == 0 || v.Addresses(Host{"a", fmt.Sprint(vipSlots)}) == nil {
		t.Error("an address that is free again is not used")
	}
}
