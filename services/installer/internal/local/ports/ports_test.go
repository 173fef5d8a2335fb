package ports

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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

// TestAPortHeldEverywhereIsFreeInNoRange has a process listen on all addresses: another range does not help.
func TestAPortHeldEverywhereIsFreeInNoRange(t *testing.T) {
	lis, err := net.Listen("tcp4", "0.0.0.0:0") //nolint:gosec // on all addresses, which the test is about
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	port := netip.MustParseAddrPort(lis.Addr().String()).Port()
	err = Check(netip.AddrPortFrom(netip.MustParseAddr("127.66.0.11"), port), "ca", "take --loopback-range auto")
	if err == nil || strings.Contains(err.Error(), "auto") ||
		!strings.Contains(err.Error(), fmt.Sprintf("on all addresses by pid %d", os.Getpid())) {
		t.Errorf("error %v", err)
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
	// A port in use is skipped.
	probe := &Free{next: 25000, left: 10}
	p, err := probe.Port()
	if err != nil {
		t.Fatal(err)
	}
	lis, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", p))
	if err != nil {
		t.Fatal(err)
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
	a, err := reserveAuto(Mesh{PID: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := reserveAuto(Mesh{PID: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if a.Prefix == b.Prefix || a.Prefix.Bits() != 16 || !a.Prefix.Addr().IsLoopback() {
		t.Errorf("ranges %s and %s", a.Prefix, b.Prefix)
	}
	b.Release()
	a.Release()
	c, err := reserveAuto(Mesh{PID: 3}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Release()
	if c.Prefix != a.Prefix {
		t.Errorf("%s was given back, and %s taken", a.Prefix, c.Prefix)
	}
	d, err := reserveAuto(Mesh{PID: 4}, []socket{{addr: netip.AddrPortFrom(b.Prefix.Addr().Next(), 15012)}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Release()
	if d.Prefix == b.Prefix {
		t.Errorf("somebody listens in %s, and it was taken", d.Prefix)
	}
}

func TestReserveNamesTheMeshThatHasTheRange(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	first, err := Reserve(netip.MustParsePrefix("127.66.0.0/16"), Mesh{PID: 4711, RunDir: "/home/ann/.run"})
	if err != nil {
		t.Fatal(err)
	}
	for _, wanted := range []string{"127.66.0.0/16", "127.66.1.0/24", "127.0.0.0/8", "127.66.0.1/16"} {
		_, err := Reserve(netip.MustParsePrefix(wanted), Mesh{PID: 1})
		var taken *TakenError
		if !errors.As(err, &taken) {
			t.Errorf("%s: error %v", wanted, err)
			continue
		}
		for _, want := range []string{"127.66.0.0/16", "/home/ann/.run", "pid 4711", "fairlead down --run-dir /home/ann/.run", "auto"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q lacks %q", wanted, err, want)
			}
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %q is not one line", wanted, err)
		}
	}
	beside, err := Reserve(netip.MustParsePrefix("127.67.0.0/16"), Mesh{PID: 1})
	if err != nil {
		t.Error(err)
	} else {
		beside.Release()
	}
	first.Release()
	again, err := Reserve(netip.MustParsePrefix("127.66.1.0/24"), Mesh{PID: 1})
	if err != nil {
		t.Fatalf("the range was given back: %v", err)
	}
	again.Release()
}

// TestReserveBesideOtherUsers: a range of another user's running mesh is taken. One of a mesh that has ended is free,
// although its file stays and cannot be written.
func TestReserveBesideOtherUsers(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	name := filepath.Join(dir, fmt.Sprintf("fairlead-loopback-127.66.0.0-16-user%d.lock", os.Getuid()+1))
	if err := os.WriteFile(name, []byte(`{"pid":4711,"runDir":"/home/bob/.run"}`), 0o444); err != nil {
		t.Fatal(err)
	}
	other, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := unix.Flock(int(other.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	wanted := netip.MustParsePrefix("127.66.0.0/16")
	var taken *TakenError
	if _, err := Reserve(wanted, Mesh{PID: 1, RunDir: "/r"}); !errors.As(err, &taken) || taken.Holder.RunDir != "/home/bob/.run" {
		t.Errorf("beside a mesh that runs: %v", err)
	}
	_ = other.Close()
	r, err := Reserve(wanted, Mesh{PID: 1, RunDir: "/r"})
	if err != nil {
		t.Fatalf("beside a mesh that has ended: %v", err)
	}
	r.Release()
}

// TestReserveIgnoresForeignFiles: a damaged file, or one that is no reservation, does not prevent a reservation.
func TestReserveIgnoresForeignFiles(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	for name, text := range map[string]string{
		"fairlead-loopback-100.lock": "", fmt.Sprintf("fairlead-loopback-127.66.0.0-16-user%d.lock", os.Getuid()): "{not json",
		"fairlead-loopback-x.lock": "x",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "fairlead-loopback-127.66.2.0-24-user7.lock"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := Reserve(netip.MustParsePrefix("127.66.0.0/16"), Mesh{PID: 1, RunDir: "/r"})
	if err != nil {
		t.Fatal(err)
	}
	r.Release()
}

// TestReserveWithHostileFiles: any user can write to the directory. A file of something else keeps its content, and a
// file's text about its holder is in an error only if it can be a pid and a directory.
func TestReserveWithHostileFiles(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	file := func(n int) string {
		return filepath.Join(dir, fmt.Sprintf("fairlead-loopback-127.70.%d.0-24-user%d.lock", n, os.Getuid()))
	}
	prefix := func(n int) netip.Prefix { return netip.MustParsePrefix(fmt.Sprintf("127.70.%d.0/24", n)) }
	mine := filepath.Join(dir, "mine")
	if err := errors.Join(os.WriteFile(mine, []byte("kept"), 0o600), os.Link(mine, file(0)), os.Symlink(mine, file(1)),
		unix.Mkfifo(file(2), 0o600), os.Mkdir(file(3), 0o700)); err != nil {
		t.Fatal(err)
	}
	for n := range 4 {
		if r, err := Reserve(prefix(n), Mesh{}); err == nil || !strings.Contains(err.Error(), "choose another --loopback-range") {
			t.Errorf("%s: %v, %v", file(n), r, err)
		}
	}
	if text, err := os.ReadFile(mine); string(text) != "kept" {
		t.Errorf("%q, %v", text, err)
	}

	for n, said := range []string{
		`{"pid":7,"runDir":"/x\u001b[2J"}`, `{"pid":7,"runDir":"/x; rm -rf ~"}`, `{"pid":7,"runDir":"$(id)"}`, `{"pid":7,"runDir":"--help"}`,
		`{"pid":-7,"runDir":"/x"}`,
	} {
		name := file(10 + n)
		if err := os.WriteFile(name, []byte(said), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(name)
		if err == nil {
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		}
		if err != nil {
			t.Fatal(err)
		}
		_, err = Reserve(prefix(10+n), Mesh{})
		var taken *TakenError
		if !errors.As(err, &taken) || taken.Holder != (Mesh{}) {
			t.Errorf("%s: %v", said, err)
		}
		_ = f.Close()
	}
}

func TestListening(t *testing.T) {
	four, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer four.Close()
	want := []netip.AddrPort{netip.MustParseAddrPort(four.Addr().String())}
	if six, err := net.Listen("tcp6", "[::]:0"); err == nil {
		defer six.Close()
		want = append(want, netip.MustParseAddrPort(six.Addr().String()))
	}
	got := Listening(unix.Getpgrp())
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("%s is not in %v", w, got)
		}
	}
	four.Close()
	if got := Listening(unix.Getpgrp()); slices.Contains(got, want[0]) {
		t.Errorf("%s is closed, and in %v", want[0], got)
	}
	if got := Listening(1 << 30); got != nil {
		t.Errorf("nobody listens on %v", got)
	}
}

func TestParseHex(t *testing.T) {
	if got, ok := parseHex("0B00427F:3AA4"); !ok || got.String() != "127.66.0.11:15012" {
		t.Errorf("got %s, %t", got, ok)
	}
	if got, ok := parseHex("B80D0120000000000000000001000000:0050"); !ok || got.String() != "[2001:db8::1]:80" {
		t.Errorf("got %s, %t", got, ok)
	}
	for _, bad := range []string{"", "0B00427F", "x:1", "0B00:1", "0B00427F:99999"} {
		if _, ok := parseHex(bad); ok {
			t.Errorf("%q was accepted", bad)
		}
	}
}
