package mesh

import (
	"fmt"
	"strings"
	"time"

	"github.com/tidwall/btree"
)

// sep joins the parts of an index key. No name, namespace or host holds it.
const sep = "\x00"

func join(parts ...string) string { return strings.Join(parts, sep) }

// index is a persistent ordered map: fork is O(1), and what a fork writes the original does not see.
// Only one goroutine may fork or write; any number may read what is no longer written.
type index[V any] struct{ m *btree.Map[string, V] }

func newIndex[V any]() index[V] { return index[V]{m: btree.NewMap[string, V](16)} }

func (x index[V]) fork() index[V] { return index[V]{m: x.m.Copy()} }

func (x index[V]) get(key string) (V, bool) { return x.m.Get(key) }

func (x index[V]) empty() bool { return x.m.Len() == 0 }

func (x index[V]) set(key string, v V) { x.m.Set(key, v) }

func (x index[V]) remove(key string) { x.m.Delete(key) }

// scan calls f in key order for every key that starts with prefix, until f returns false.
func (x index[V]) scan(prefix string, f func(key string, v V) bool) {
	x.m.Ascend(prefix, func(key string, v V) bool {
		return strings.HasPrefix(key, prefix) && f(key, v)
	})
}

// age renders a creation time so that text order is time order; zero sorts first.
func age(t time.Time) string {
	if t.IsZero() {
		return "0"
	}
	return fmt.Sprintf("1%020d", t.UnixNano())
}
