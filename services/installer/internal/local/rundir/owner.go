package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// foreign adds to the error about a run directory that self, a user id, may not use it: whose it is, and what to do. It
// returns other errors as they are. A directory that cannot be looked at is judged by the nearest one above it.
func foreign(dir string, err error, self int) error {
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	const remedy = "run this as that user, or name another --run-dir"
	for at := dir; ; at = filepath.Dir(at) {
		info, statErr := os.Stat(at)
		if statErr != nil && at != filepath.Dir(at) {
			continue
		}
		stat, ok := statOf(info)
		switch {
		case !ok || int(stat.Uid) == self:
			return err
		case at == dir:
			return fmt.Errorf("%w: the mesh of %s belongs to user %s; %s", err, dir, userName(stat.Uid), remedy)
		default:
			return fmt.Errorf("%w: %s belongs to user %s; %s", err, at, userName(stat.Uid), remedy)
		}
	}
}

// statOf is what the kernel says of a file; ok is false without a file.
func statOf(info os.FileInfo) (stat *syscall.Stat_t, ok bool) {
	if info == nil {
		return nil, false
	}
	stat, ok = info.Sys().(*syscall.Stat_t)
	return stat, ok
}

// userName is the name of a user, or the id if it has none.
func userName(uid uint32) string {
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return id
}
