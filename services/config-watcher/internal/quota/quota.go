// Package quota bounds what the objects of one namespace cost in memory. Whoever may write objects in a namespace could
// otherwise take the memory of every replica of config-watcher and xds-server, one valid object after the other.
// The webhook and the store ask a Table before they let an object in; package app tells it what is in force.
package quota

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Default bounds the objects of a namespace, in bytes by Cost: those of 10,000 usual VirtualServices, an eighth of the
// memory that the chart gives config-watcher.
const Default = 128 << 20

const (
	// messageBytes and valueBytes are what a message and a field or an element take, besides its text: decoded, as a
	// resource of a revision, and encoded for the subscribers.
	messageBytes = 640
	valueBytes   = 48
	// copies of a text are kept.
	copies = 3
	// reserved is how long an object counts that was let in and has not arrived yet.
	reserved = 10 * time.Second
)

// counts reports whether objects of an API group cost something: those that a namespace's people write for the mesh.
func counts(group string) bool { return kinds.OwnGroup(group) || group == kinds.GroupGatewayAPI }

// Cost is the memory that an object of Istio's kinds, or of the Gateway API's, takes in config-watcher, in bytes,
// about; 0 for all others.
func Cost(o *object.Object) int64 {
	var total int64
	m, ok := o.Body.(proto.Message)
	switch {
	case o.Body == nil || !counts(o.Key.Group):
		return 0
	case ok:
		total = costOf(m.ProtoReflect())
	case o.Key.Group == kinds.GroupGatewayAPI:
		total = messageBytes + goCost(reflect.ValueOf(o.Body).Elem().FieldByName("Spec"))
	default:
		return 0
	}
	for _, texts := range []map[string]string{o.Labels, o.Annotations} {
		for k, v := range texts {
			total += valueBytes + copies*int64(len(k)+len(v))
		}
	}
	return total
}

// goCost is costOf for a value of a Go type: what a pointer or a list leads to is what a message would be.
func goCost(v reflect.Value) int64 {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return 0
		}
		return valueBytes + inner(v.Elem())
	case reflect.String:
		return valueBytes + copies*int64(v.Len())
	case reflect.Slice:
		var total int64
		for i := range v.Len() {
			total += valueBytes + inner(v.Index(i))
		}
		return total
	case reflect.Map:
		var total int64
		for k, e := range v.Seq2() {
			total += goCost(k) + goCost(e)
		}
		return total
	case reflect.Struct:
		var total int64
		for i := range v.NumField() {
			total += goCost(v.Field(i))
		}
		return total
	}
	return valueBytes
}

func inner(v reflect.Value) int64 {
	if v.Kind() == reflect.Struct {
		return messageBytes + goCost(v)
	}
	return goCost(v)
}

func costOf(m protoreflect.Message) int64 {
	total := int64(messageBytes)
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsList():
			for i := range v.List().Len() {
				total += valueCost(f, v.List().Get(i))
			}
		case f.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				total += valueCost(f.MapKey(), k.Value()) + valueCost(f.MapValue(), v)
				return true
			})
		default:
			total += valueCost(f, v)
		}
		return true
	})
	return total
}

func valueCost(f protoreflect.FieldDescriptor, v protoreflect.Value) int64 {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return valueBytes + costOf(v.Message())
	case protoreflect.StringKind:
		return valueBytes + copies*int64(len(v.String()))
	case protoreflect.BytesKind:
		return valueBytes + copies*int64(len(v.Bytes()))
	}
	return valueBytes
}

// Table knows what the objects in force cost. It is safe for concurrent use.
type Table struct {
	limit  int64
	exempt func() []string
	clock  clock.Clock

	mu         sync.Mutex
	namespaces map[string]*namespace
}

// namespace is one with objects that cost something.
type namespace struct {
	total   int64
	objects map[object.Key]int64
	// let are the objects that were let in and have not arrived, with the time until which they count.
	let map[object.Key]reservation
}

type reservation struct {
	more  int64
	until time.Time
}

// New makes a Table. limit is in bytes; with 0 nothing is refused. exempt lists the namespaces of administrators, which
// have no limit.
func New(limit int64, exempt func() []string, c clock.Clock) *Table {
	return &Table{limit: limit, exempt: exempt, clock: c, namespaces: map[string]*namespace{}}
}

// Take takes note of changes of the objects in force.
func (t *Table) Take(changes []normalise.Change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range changes {
		if c.Key.Namespace == "" || !counts(c.Key.Group) {
			continue
		}
		n := t.of(c.Key.Namespace)
		n.total -= n.objects[c.Key]
		delete(n.objects, c.Key)
		delete(n.let, c.Key)
		if c.Object != nil {
			cost := Cost(c.Object)
			n.objects[c.Key] = cost
			n.total += cost
		}
		if len(n.objects)+len(n.let) == 0 {
			delete(t.namespaces, c.Key.Namespace)
		}
	}
}

// Check returns why objects may not be written together: a namespace of theirs would cost more than the limit. What
// costs no more than its version in force is never refused, so that a namespace over the limit can be mended. Unless
// reserve is false, the objects count from now on, for a while, until Take hears of them.
func (t *Table) Check(reserve bool, objects ...*object.Object) (problems object.Problems) {
	if t == nil || t.limit == 0 {
		return nil
	}
	exempt := t.exempt()
	now := t.clock.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	more := map[string]map[object.Key]int64{}
	for _, o := range objects {
		cost, ns := Cost(o), o.Key.Namespace
		if cost == 0 || slices.Contains(exempt, ns) {
			continue
		}
		n := t.namespaces[ns]
		if n == nil {
			n = &namespace{}
		}
		maps.DeleteFunc(n.let, func(_ object.Key, r reservation) bool { return now.After(r.until) })
		if more[ns] == nil {
			more[ns] = map[object.Key]int64{}
			for k, r := range n.let {
				more[ns][k] = r.more
			}
		}
		delete(more[ns], o.Key)
		grows, total := cost-n.objects[o.Key], n.total
		for _, m := range more[ns] {
			total += m
		}
		if grows <= 0 {
			continue
		}
		if total+grows > t.limit {
			problems = append(problems, object.Problem{
				Object: o.Key.String(),
				Reason: fmt.Sprintf("with it the objects of namespace %s would take %d MiB of memory in each replica; the limit is %d MiB, and %d "+
					"are taken",
					ns, mebibytes(total+grows), t.limit>>20, mebibytes(total)),
				Remedy: "make it smaller, delete objects that nobody needs, or have an administrator raise --max-namespace-memory of config-watcher " +
					"(values.configWatcher.maxNamespaceMemory)",
			})
			continue
		}
		more[ns][o.Key] = grows
	}
	if len(problems) > 0 || !reserve {
		return problems
	}
	for ns, of := range more {
		for k, m := range of {
			t.of(ns).let[k] = reservation{m, now.Add(reserved)}
		}
	}
	return nil
}

// of returns a namespace, which it makes if it is not known.
func (t *Table) of(name string) *namespace {
	n := t.namespaces[name]
	if n == nil {
		n = &namespace{objects: map[object.Key]int64{}, let: map[object.Key]reservation{}}
		t.namespaces[name] = n
	}
	return n
}

// mebibytes rounds up.
func mebibytes(bytes int64) int64 { return (bytes + 1<<20 - 1) >> 20 }
