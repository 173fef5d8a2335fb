// Package mcpserver serves the objects in force by MCP over xDS, for other control planes: istiod, or another
// config-watcher. Table holds the objects in the form in which they are sent (table.go), Server the streams of the two
// protocols (sotw.go, delta.go). The rules are in ADR 100.
package mcpserver

import (
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/mcp"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source/declared"
)

// TableConfig of a Table. Root and Log are required.
type TableConfig struct {
	// Kinds are the names of the kinds that are served; empty serves all of Istio's.
	Kinds []string
	// Namespaces are those whose objects are served; empty serves all.
	Namespaces []string
	// Root is the mesh's root namespace: that of an object which holds for the whole mesh and has none.
	Root func() string
	Log  *slog.Logger
}

// Table holds the objects that are served. It notifies of changes.
type Table struct {
	notify.Notifier
	cfg TableConfig

	mu    sync.Mutex
	kinds map[*kinds.Kind]*served
}

// served is one kind.
type served struct {
	resources map[string]*resource // by namespace/name
	// newest is made when it is asked for; nil after a change.
	newest *state
}

// resource is one object as it is sent. It is immutable.
type resource struct {
	name, version string
	// raw is the content of an Any of mcp.ResourceType.
	raw []byte
}

// state is all of a kind at one moment. It is immutable but for body.
type state struct {
	// version is a hash of the contents.
	version   string
	resources []*resource // sorted by name
	encode    sync.Once
	body      []byte
}

// NewTable makes an empty table. cfg's kinds have been checked with CheckKinds.
func NewTable(cfg TableConfig) *Table {
	t := &Table{cfg: cfg, kinds: map[*kinds.Kind]*served{}}
	for _, k := range mcp.Kinds() {
		t.kinds[k] = &served{resources: map[string]*resource{}}
	}
	return t
}

// CheckKinds returns the names that are of no kind which is served.
func CheckKinds(names []string) (unknown []string) {
	for _, name := range names {
		if !slices.ContainsFunc(mcp.Kinds(), func(k *kinds.Kind) bool { return k.Name == name }) {
			unknown = append(unknown, name)
		}
	}
	return unknown
}

// KindNames are those of the kinds that can be served.
func KindNames() (out []string) {
	for _, k := range mcp.Kinds() {
		out = append(out, k.Name)
	}
	return out
}

// Take takes changes of the objects in force over.
func (t *Table) Take(changes []normalise.Change) {
	changed := false
	t.mu.Lock()
	for _, c := range changes {
		if t.take(c) {
			changed = true
		}
	}
	t.mu.Unlock()
	if changed {
		t.Notify()
	}
}

func (t *Table) take(c normalise.Change) (changed bool) {
	k := kinds.Find(c.Key.Group, c.Key.Kind)
	if k == nil || t.kinds[k] == nil || c.Key.Cluster != "" {
		return false
	}
	namespace := c.Key.Namespace
	if namespace == "" {
		namespace = t.cfg.Root()
	}
	of, name := t.kinds[k], namespace+"/"+c.Key.Name
	var next *resource
	if t.serves(k, namespace, c.Object) {
		raw, version, err := mcp.Encode(c.Object, namespace)
		if err != nil {
			t.cfg.Log.Error("object cannot be served by MCP, its last version stays", "object", c.Key.String(), "error", err)
			return false
		}
		next = &resource{name: name, version: version, raw: raw}
	}
	before := of.resources[name]
	switch {
	case next == nil && before == nil, next != nil && before != nil && next.version == before.version:
		return false
	case next == nil:
		delete(of.resources, name)
	default:
		of.resources[name] = next
	}
	of.newest = nil
	return true
}

// serves reports whether an object is served. What came from another control plane is not: two that read each other
// would keep each other's deleted objects.
func (t *Table) serves(k *kinds.Kind, namespace string, o *object.Object) bool {
	return o != nil && !declared.Foreign(o.Source) && (len(t.cfg.Kinds) == 0 || slices.Contains(t.cfg.Kinds, k.Name)) &&
		(len(t.cfg.Namespaces) == 0 || slices.Contains(t.cfg.Namespaces, namespace))
}

// empty is the state of what nobody knows.
var empty = &state{version: "0"}

// state returns all of a kind; nil is a kind that nobody knows.
func (t *Table) state(k *kinds.Kind) *state {
	if k == nil {
		return empty
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.kinds[k]
	if of.newest == nil {
		of.newest = newState(of.resources)
	}
	return of.newest
}

func newState(resources map[string]*resource) *state {
	s := &state{resources: slices.SortedFunc(maps.Values(resources), func(a, b *resource) int { return strings.Compare(a.name, b.name) })}
	h := sha256.New()
	for _, r := range s.resources {
		h.Write([]byte(r.name + "\x00" + r.version + "\x00"))
	}
	s.version = hex.EncodeToString(h.Sum(nil)[:8])
	return s
}

// Fields of envoy.service.discovery.v3.DiscoveryResponse and google.protobuf.Any.
const (
	fieldVersion, fieldResources, fieldType, fieldNonce = 1, 2, 4, 5
	fieldAnyType, fieldAnyValue                         = 1, 2
)

// encoded is the list as the resources of a DiscoveryResponse. It is made once, for all streams.
func (s *state) encoded() []byte {
	s.encode.Do(func() {
		size := 0
		for _, r := range s.resources {
			size += len(r.raw) + len(mcp.ResourceType) + 16
		}
		s.body = make([]byte, 0, size)
		for _, r := range s.resources {
			length := protowire.SizeTag(fieldAnyType) + protowire.SizeBytes(len(mcp.ResourceType)) + protowire.SizeTag(fieldAnyValue) +
				protowire.SizeBytes(len(r.raw))
			s.body = protowire.AppendTag(s.body, fieldResources, protowire.BytesType)
			s.body = protowire.AppendVarint(s.body, uint64(length))
			s.body = protowire.AppendTag(s.body, fieldAnyType, protowire.BytesType)
			s.body = protowire.AppendString(s.body, mcp.ResourceType)
			s.body = protowire.AppendTag(s.body, fieldAnyValue, protowire.BytesType)
			s.body = protowire.AppendBytes(s.body, r.raw)
		}
	})
	return s.body
}
