package mesh

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/btree"
)

// sep joins the parts of an index key. No name, namespace or host holds it.
const sep = "\x00"

func join(parts ...string) string { return strings.Join(parts, sep) }

// index is an ordered map that snapshots share until a writer changes it: the writer of the next snapshot copies the
// map once, in O(1), and then the nodes on the way to what it changes. The zero index is empty. One goroutine may
// write; any number may read the indices of a snapshot that is complete.
type index[V any] struct {
	m *btree.Map[string, V]
	// generation of the snapshot whose writer made the copy.
	generation uint64
}

// writable returns the map of the snapshot that w writes.
func (x *index[V]) writable(w *writer) *btree.Map[string, V] {
	switch {
	case x.generation == w.next.generation:
	case x.m == nil:
		x.m = btree.NewMap[string, V](16)
	default:
		x.m = x.m.Copy()
	}
	x.generation = w.next.generation
	return x.m
}

func (x index[V]) get(key string) (v V, ok bool) {
	if x.m == nil {
		return v, false
	}
	return x.m.Get(key)
}

func (x index[V]) len() int {
	if x.m == nil {
		return 0
	}
	return x.m.Len()
}

// scan calls f in key order for every key that starts with prefix, until f returns false.
func (x index[V]) scan(prefix string, f func(key string, v V) bool) {
	if x.m == nil {
		return
	}
	x.m.Ascend(prefix, func(key string, v V) bool {
		return strings.HasPrefix(key, prefix) && f(key, v)
	})
}

// list collects the values of the keys that start with prefix, in key order.
func (x index[V]) list(prefix string) (values []V) {
	x.scan(prefix, func(_ string, v V) bool {
		values = append(values, v)
		return true
	})
	return values
}

// any reports whether a key starts with prefix.
func (x index[V]) any(prefix string) (found bool) {
	x.scan(prefix, func(string, V) bool {
		found = true
		return false
	})
	return found
}

// age renders a creation time so that text order is time order; zero sorts first.
func age(t time.Time) string {
	if t.IsZero() {
		return "0"
	}
	return fmt.Sprintf("1%020d", t.UnixNano())
}

func number(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
