package footprint

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestReadOnly(t *testing.T) {
	const maps = `00400000-00e92000 r-xp 00000000 fe:00 1 /usr/bin/node agent
00e92000-01caf000 r--p 00a92000 fe:00 1 /usr/bin/node agent
01caf000-01d00000 rw-p 018af000 fe:00 1 /usr/bin/node agent
01d00000-01e00000 rw-p 00000000 00:00 0
7f0000000000-7f0000001000 r--p 00000000 fe:00 2 /usr/lib/libc.so.6
`
	got, err := readOnly(strings.NewReader(maps), "/usr/bin/node agent")
	if err != nil {
		t.Fatal(err)
	}
	if want := []addressRange{{0x400000, 0xe92000}, {0xe92000, 0x1caf000}}; !slices.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
}

// The test continues to run after Trim has dropped the pages of its binary.
func TestTrim(t *testing.T) {
	if err := Trim(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile("/proc/self/status"); err != nil {
		t.Error(err)
	}
}
