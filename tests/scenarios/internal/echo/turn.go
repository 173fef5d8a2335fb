package echo

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// turns counts requests by a key, for one process and, with a directory, for all that have it in common.
type turns struct {
	dir string

	mu     sync.Mutex
	counts map[string]int
}

// next is the count with this request in this process, from 1.
func (t *turns) next(key string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counts == nil || len(t.counts) > kept {
		t.counts = map[string]int{}
	}
	t.counts[key]++
	return t.counts[key]
}

// shared is the count with this request in all processes: the length of a file to which each adds a byte.
func (t *turns) shared(key string, own int) int {
	if t.dir == "" || key == "" {
		return own
	}
	sum := sha256.Sum256([]byte(key))
	f, err := os.OpenFile(filepath.Join(t.dir, hex.EncodeToString(sum[:16])), os.O_CREATE|os.O_APPEND|os.O_WRONLY,
		0o666) //nolint:gosec // applications may run as different users
	if err != nil {
		return own
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX) != nil {
		return own
	}
	if _, err := f.Write([]byte{'.'}); err != nil {
		return own
	}
	info, err := f.Stat()
	if err != nil {
		return own
	}
	return int(info.Size())
}
