package registry

import (
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source/consul/catalog"
)

// Last is what a service became last, by MapAgain. The zero value is nothing.
type Last struct {
	by *Registry
	// entry is the name of the ServiceEntry, workloads are those of instances in the order of their names.
	entry     string
	ports     []port
	instances []Instance
	workloads []*object.Object
}

// MapAgain is Map, and makes the WorkloadEntries anew of those instances alone that have changed since the call before,
// which has set last, by the same Registry: of a large service few do at once. It keeps instances, which nobody changes
// any more.
func (r *Registry) MapAgain(last *Last, service string, instances []Instance) Mapping {
	b := builder{registry: r, out: Mapping{Service: service, Rule: -1}, last: last}
	b.build(instances)
	b.finish()
	*last = Last{}
	if b.out.Entry != nil && len(b.out.Problems) == 0 { // those of instances are not told of one that is not made anew
		*last = Last{by: r, entry: b.entry, ports: b.ports, instances: instances, workloads: b.out.Workloads}
	}
	return b.out
}

// unchanged is the WorkloadEntry that an instance became last; nil if it must be made. The ports are known.
func (b *builder) unchanged(in *Instance) *object.Object {
	l := b.last
	if l == nil || l.by != b.registry || l.entry != b.entry || !slices.Equal(l.ports, b.ports) {
		return nil
	}
	at, there := slices.BinarySearchFunc(l.instances, *in, catalog.Compare)
	if !there || !l.instances[at].Equal(in) {
		return nil
	}
	at, there = slices.BinarySearchFunc(l.workloads, b.entryOf(in), func(o *object.Object, name string) int {
		return strings.Compare(o.Key.Name, name)
	})
	if !there {
		return nil
	}
	return l.workloads[at]
}

// share replaces parts of a WorkloadEntry that equal those of the one before it, so that a service has them once.
func (b *builder) share(o *object.Object) {
	we := o.Body.(*networking.WorkloadEntry)
	if before := b.shared; before != nil {
		was := before.Body.(*networking.WorkloadEntry)
		if maps.Equal(was.Ports, we.Ports) {
			we.Ports = was.Ports
		}
		if maps.Equal(was.Labels, we.Labels) {
			we.Labels = was.Labels
		}
		if *before.Health == *o.Health {
			o.Health = before.Health
		}
		o.Registered = before.Registered // the name of the service alone
	}
	b.shared = o
}
