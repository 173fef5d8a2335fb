package origin_test

import (
	"net"
	"net/netip"
	"testing"

	"fairlead.dev/pkg/origin"
)

func TestOf(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.1:80":           "192.0.2.1",
		"[::ffff:192.0.2.1]:80":  "192.0.2.1",
		"[2001:db8:1:2:3::4]:80": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:1":       "fe80::/64",
	} {
		if got := origin.Of(net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))); got != want {
			t.Errorf("%s comes from %s, want %s", address, got, want)
		}
	}
	if got := origin.Of(&net.UnixAddr{Name: "@", Net: "unix"}); got != "unix" {
		t.Errorf("a unix socket comes from %s", got)
	}
}
