package plan

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/store"
)

// node is a memoised result of a dependency graph: a list of names, or one resource.
type node struct {
	plan *typePlan
	nodeKey

	// built is true while the node has a result or a failure; stale is true if it has to be built again.
	built, stale bool
	// dependencies are the topics that the last build has read, and scope says for which classes its result holds.
	dependencies []*dependency
	scope        input.Scope
	// failure of the last build; the result of the build before it stays.
	failure error

	// names are the result of a list, blob that of a resource.
	names []string
	blob  *store.Blob
	// pending is true if the last build returned ErrPending and there is no earlier result.
	pending bool

	// listed counts the lists of this scope plan that name the resource. hidden counts the lists of plans below that
	// name it and that a list of this plan replaces.
	listed, hidden int
	// replaced are the names of the list below, which a list of this plan replaces.
	replaced []string
	// subscribers to the resource by name: Watchers, or the scope plan above.
	subscribers map[any]struct{}
}

// nodeKey names a node of one type.
type nodeKey struct {
	// list is true for a list of names. Its name is a host, or "" for the names that depend on no host.
	list bool
	name string
}

// item returns the node's result as an item of a snapshot.
func (n *node) item(wildcard bool) Item {
	return Item{Blob: n.blob, Wildcard: wildcard, Pending: n.pending}
}

func (n *node) addSubscriber(who any) {
	if n.subscribers == nil {
		n.subscribers = map[any]struct{}{}
	}
	n.subscribers[who] = struct{}{}
}

// dependency is a topic and the nodes of one graph that depend on it.
type dependency struct {
	topic mesh.Topic
	nodes []*node
}

// setDependencies replaces the node's dependencies. A build that failed may have stopped before it read everything, so
// after a failure the earlier dependencies stay too.
func (g *graph) setDependencies(n *node, topics mesh.Topics, failure error) {
	if failure != nil {
		for _, d := range n.dependencies {
			topics.Add(d.topic)
		}
	}
	dependencies := make([]*dependency, 0, len(topics))
	for topic := range topics {
		d, ok := g.dependencies[topic]
		if !ok {
			d = &dependency{topic: topic}
			g.dependencies[topic] = d
			g.follow(topic)
		}
		dependencies = append(dependencies, d)
		if !slices.Contains(n.dependencies, d) {
			d.nodes = append(d.nodes, n)
		}
	}
	for _, d := range n.dependencies {
		if !topics.Has(d.topic) {
			g.removeDependent(d, n)
		}
	}
	n.dependencies = dependencies
}

func (g *graph) removeDependent(d *dependency, n *node) {
	if i := slices.Index(d.nodes, n); i >= 0 {
		last := len(d.nodes) - 1
		d.nodes[i] = d.nodes[last]
		d.nodes[last] = nil
		d.nodes = d.nodes[:last]
	}
	if len(d.nodes) == 0 {
		delete(g.dependencies, d.topic)
		g.unfollow(d.topic)
	}
}

// errNames is the error of a list of names that no xDS type may have.
var errNames = errors.New("invalid list of names")

// listNames calls a translator's Names or, for a host, HostNames. A panic becomes an error.
func listNames(t Translator, r *input.Reader, host string) (names []string, err error) {
	defer recovered(&err)
	if host == "" {
		names, err = t.Names(r)
	} else {
		names, err = t.HostNames(r, host)
	}
	if err != nil {
		return nil, err
	}
	for i, n := range names {
		if n == "" || n == "*" {
			return nil, fmt.Errorf("%w: %q", errNames, n)
		}
		if i > 0 && names[i-1] >= n {
			return nil, fmt.Errorf("%w: %q does not sort after %q", errNames, n, names[i-1])
		}
	}
	return names, nil
}

// buildResource calls a translator's Build and validates the message as Envoy does. A panic becomes an error. The
// message is returned together with an *Incomplete, and with no other error.
func buildResource(t Translator, r *input.Reader, name string) (m proto.Message, err error) {
	defer recovered(&err)
	m, err = t.Build(r, name)
	if _, incomplete := errors.AsType[*Incomplete](err); err != nil && !incomplete || m == nil {
		return nil, err
	}
	if got := cache.GetResourceName(m); got != name {
		return nil, fmt.Errorf("built %q instead", got)
	}
	if v, ok := m.(interface{ ValidateAll() error }); ok {
		if err := v.ValidateAll(); err != nil {
			return nil, fmt.Errorf("invalid: %w", err)
		}
	}
	return m, err
}

func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("translator panicked: %v\n%s", p, debug.Stack())
	}
}
