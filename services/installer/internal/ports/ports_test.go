package ports

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
)

func TestCheckNamesTheHolder(t *testing.T) {
	lis, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddrPort(lis.Addr().String())
	err = Check(addr, "ca", "choose another range")
	var busy *BusyError
	if !errors.As(err, &busy) {
		t.Fatalf("error %v", err)
	}
	if busy.PID != os.Getpid() || busy.Command == "" {
		t.Errorf("holder %d (%s)", busy.PID, busy.Command)
	}
	for _, want := range []string{addr.String(), "needed by ca", fmt.Sprintf("pid %d", os.Getpid()), "choose another range"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
	_ = lis.Close()
	if err := Check(addr, "ca", ""); err != nil {
		t.Errorf("free address: %v", err)
	}
}

func TestFreeHandsOutEachPortOnce(t *testing.T) {
	f := NewFree("seed")
	seen := map[uint16]bool{}
	for range 50 {
		p, err := f.Port()
		if err != nil {
			t.Fatal(err)
		}
		if seen[p] || p < firstFree || p >= lastFree {
			t.Errorf("port %d twice or out of range", p)
		}
		seen[p] = true
	}
	// A port that is in use is passed over.
	probe := &Free{next: 25000, left: 10}
	p, err := probe.Port()
	if err != nil {
		t.Skip(err)
	}
	lis, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", p))
	if err != nil {
		t.Skip(err)
	}
	defer lis.Close()
	again := &Free{next: int(p), left: 2}
	if q, err := again.Port(); err == nil && q == p {
		t.Errorf("port %d is in use", q)
	}
	if _, err := (&Free{next: firstFree}).Port(); err == nil {
		t.Error("no port is left, and one was found")
	}
}

func TestReserveAuto(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	a, err := ReserveAuto()
	if err != nil {
		t.Fatal(err)
	}
	b, err := ReserveAuto()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	if a.Prefix == b.Prefix || a.Prefix.Bits() != 16 || !a.Prefix.Addr().IsLoopback() {
		t.Errorf("ranges %s and %s", a.Prefix, b.Prefix)
	}
	a.Release()
	c, err := ReserveAuto()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Release()
	if c.Prefix != a.Prefix {
		t.Errorf("%s was given back, and %s taken", a.Prefix, c.Prefix)
	}
}

func TestParseHex(t *testing.T) {
	if got, ok := parseHex("0B00427F:3AA4"); !ok || got.String() != "127.66.0.11:15012" {
		t.Errorf("got %s, %t", got, ok)
	}
	for _, bad := range []string{"", "0B00427F", "x:1", "0B00:1", "0B00427F:99999"} {
		if _, ok := parseHex(bad); ok {
			t.Errorf("%q was accepted", bad)
		}
	}
}
