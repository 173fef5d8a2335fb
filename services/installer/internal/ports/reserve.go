package ports

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// DefaultRange is where a mesh's addresses are taken from by default.
const DefaultRange = "127.66.0.0/16"

// Auto asks for a loopback range that no other mesh uses.
const Auto = "auto"

// Ranges that Auto chooses from: 127.100.0.0/16 to 127.199.0.0/16.
const (
	firstAuto = 100
	lastAuto  = 199
)

// Reserve holds a loopback range until Release, or the end of the process. The reservation is a locked file in the directory for temporary
// files, so it keeps meshes of all users of the machine apart.
type Reserve struct {
	Prefix netip.Prefix
	file   *os.File
}

// ReserveAuto takes a /16 of loopback that no other mesh has reserved.
func ReserveAuto() (*Reserve, error) {
	for n := firstAuto; n <= lastAuto; n++ {
		name := filepath.Join(os.TempDir(), fmt.Sprintf("fairlead-loopback-%d.lock", n))
		f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			continue // another user's
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			_ = f.Close()
			continue
		}
		return &Reserve{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{127, byte(n), 0, 0}), 16), file: f}, nil
	}
	return nil, fmt.Errorf("no loopback range from 127.%d.0.0/16 to 127.%d.0.0/16 is free; name one with --loopback-range", firstAuto, lastAuto)
}

// Release gives the range back.
func (r *Reserve) Release() {
	_ = r.file.Close()
}
