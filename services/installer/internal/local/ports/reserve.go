package ports

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"
)

// DefaultRange is the default of --loopback-range.
const DefaultRange = "127.66.0.0/16"

// Auto is the value of --loopback-range for ReserveAuto.
const Auto = "auto"

// ReserveAuto chooses from 127.n.0.0/16, with n in these bounds.
const (
	firstAuto = 100
	lastAuto  = 199
)

// Mesh is who holds a reservation: the process of `fairlead up` and its run directory.
type Mesh struct {
	PID    int    `json:"pid"`
	RunDir string `json:"runDir"`
}

// TakenError says that another mesh holds an overlapping range.
type TakenError struct {
	// Wanted is the requested range, Range the one that is reserved.
	Wanted, Range netip.Prefix
	// Holder is zero if its file cannot be read, or holds a directory's name that is unsafe in a command to copy.
	Holder Mesh
}

func (e *TakenError) Error() string {
	by, stop := "another mesh", "stop it"
	if e.Holder.PID > 0 {
		by = fmt.Sprintf("the mesh in %s (`fairlead up`, pid %d)", e.Holder.RunDir, e.Holder.PID)
		stop = fmt.Sprintf("stop it with `fairlead down --run-dir %s`", e.Holder.RunDir)
	}
	return fmt.Sprintf("loopback range %s is in use by %s; %s, or let `--loopback-range auto` (make: LOOPBACK=auto) find a free one", e.Range,
		by, stop)
}

// Reservation is a reserved loopback range, until Release or the end of the process. It is a locked file in the
// directory for temporary files, so meshes of all users of the machine see it.
type Reservation struct {
	Prefix netip.Prefix
	file   *os.File
}

// Reserve reserves a range. It returns a *TakenError if another mesh has one that overlaps.
func Reserve(prefix netip.Prefix, by Mesh) (*Reservation, error) {
	r, err := lock(prefix, by)
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(reservation("*"))
	if err != nil {
		return r, nil //nolint:nilerr // other reservations cannot be listed
	}
	for _, name := range files {
		other, ok := reserved(name)
		if !ok || name == r.file.Name() || !other.Overlaps(prefix) || !locked(name) {
			continue
		}
		r.Release()
		return nil, &TakenError{Wanted: prefix, Range: other, Holder: readHolder(name)}
	}
	return r, nil
}

// ReserveAuto reserves a /16 of loopback that no mesh has reserved and on which no process listens.
func ReserveAuto(by Mesh) (*Reservation, error) { return reserveAuto(by, sockets()) }

func reserveAuto(by Mesh, busy []socket) (*Reservation, error) {
	for n := firstAuto; n <= lastAuto; n++ {
		prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{127, byte(n), 0, 0}), 16)
		if slices.ContainsFunc(busy, func(s socket) bool { return prefix.Contains(s.addr.Addr()) }) {
			continue
		}
		if r, err := Reserve(prefix, by); err == nil {
			return r, nil
		}
	}
	return nil, fmt.Errorf("no loopback range from 127.%d.0.0/16 to 127.%d.0.0/16 is free; name one with --loopback-range", firstAuto,
		lastAuto)
}

// lock creates and locks the file of a range.
func lock(prefix netip.Prefix, by Mesh) (*Reservation, error) {
	prefix = prefix.Masked()
	name := reservation(fmt.Sprintf("%s-user%d", strings.ReplaceAll(prefix.String(), "/", "-"), os.Getuid()))
	taken := &TakenError{Wanted: prefix, Range: prefix}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o644) //nolint:gosec // other users read who holds the range
	if errors.Is(err, fs.ErrPermission) {
		// Root in a user namespace may not open a file of the machine's root, so it creates one with a unique name,
		// which the pattern of Reserve finds too.
		f, err = os.CreateTemp(os.TempDir(), strings.TrimSuffix(filepath.Base(name), ".lock")+"-*.lock")
	}
	if err != nil {
		return nil, fmt.Errorf("reserve loopback range %s: %w; remove the file, or choose another --loopback-range", prefix, err)
	}
	// A file with a second hard link, which any user can create here, is not only a reservation's.
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink > 1 {
		_ = f.Close()
		return nil, fmt.Errorf("reserve loopback range %s: %s is no file of its own; remove it, or choose another --loopback-range", prefix,
			f.Name())
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		_ = f.Close()
		taken.Holder = readHolder(name)
		return nil, taken
	}
	r := &Reservation{Prefix: prefix, file: f}
	raw, err := json.Marshal(by)
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt(raw, 0)
	}
	if err != nil {
		r.Release()
		return nil, fmt.Errorf("reserve loopback range %s: %w", prefix, err)
	}
	return r, nil
}

// reservation returns the path of a reservation's file.
func reservation(name string) string {
	return filepath.Join(os.TempDir(), "fairlead-loopback-"+name+".lock")
}

// reserved returns the range in the name of a reservation's file.
func reserved(name string) (netip.Prefix, bool) {
	base, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(name), "fairlead-loopback-"), "-user")
	prefix, err := netip.ParsePrefix(strings.ReplaceAll(base, "-", "/"))
	return prefix, err == nil
}

// locked reports whether a process holds the lock of the file.
func locked(name string) bool {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil
}

// readHolder reads who holds a reservation; zero if the file does not say.
func readHolder(name string) Mesh {
	var m Mesh
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return m
	}
	defer f.Close()
	const most = 8 << 10
	raw, err := io.ReadAll(io.LimitReader(f, most))
	// Other users write these files, and the error shows the directory as part of a command.
	strange := func(c rune) bool {
		return !strings.ContainsRune("/._-+@", c) && !unicode.IsLetter(c) && !unicode.IsDigit(c)
	}
	if err != nil || json.Unmarshal(raw, &m) != nil || m.PID <= 0 || strings.HasPrefix(m.RunDir, "-") ||
		strings.ContainsFunc(m.RunDir, strange) {
		return Mesh{}
	}
	return m
}

// Release ends the reservation.
func (r *Reservation) Release() {
	_ = r.file.Close() // releases the lock
}
