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

// action is one memoised step of a layer: a list of names, or one resource.
type action struct {
	plan *typePlan
	// list is true for a list of names, of the host that name says or, for "", of what no host has a part in.
	list bool
	name string

	// built is true once the step was done; stale that it must be done again.
	built, stale bool
	// inputs that the last run read, and how far what it read holds.
	inputs []*topicNode
	scope  input.Scope
	// failure of the last run; the result before it stays.
	failure error

	// names are the result of a list, blob that of a resource.
	names []string
	blob  *store.Blob
	// pending is true if the last run lacked an input and there is no result before it.
	pending bool

	// listed counts the lists of the tier that name the resource, hidden those of the tiers below that do not count in this one.
	listed, hidden int
	// covers are the names of the list below that this list stands for.
	covers []string
	// askers ask for the resource by its name.
	askers map[any]struct{}
}

// item is what the action has built.
func (a *action) item(wildcard bool) Item {
	return Item{Blob: a.blob, Wildcard: wildcard, Pending: a.pending}
}

func (a *action) ask(who any) {
	if a.askers == nil {
		a.askers = map[any]struct{}{}
	}
	a.askers[who] = struct{}{}
}

// topicNode is a recorded dependency and the actions that have it.
type topicNode struct {
	topic   mesh.Topic
	actions []*action
}

// attach replaces the action's inputs. A run that failed may have stopped before it read all it needs, so the inputs of the one before it
// stay too.
func (l *layer) attach(a *action, topics mesh.Topics, failure error) {
	if failure != nil {
		for _, node := range a.inputs {
			topics.Add(node.topic)
		}
	}
	inputs := make([]*topicNode, 0, len(topics))
	for topic := range topics {
		node, ok := l.nodes[topic]
		if !ok {
			node = &topicNode{topic: topic}
			l.nodes[topic] = node
			l.engine.follow(topic)
		}
		inputs = append(inputs, node)
		if !slices.Contains(a.inputs, node) {
			node.actions = append(node.actions, a)
		}
	}
	for _, node := range a.inputs {
		if !topics.Has(node.topic) {
			l.detach(a, node)
		}
	}
	a.inputs = inputs
}

func (l *layer) detach(a *action, node *topicNode) {
	if i := slices.Index(node.actions, a); i >= 0 {
		last := len(node.actions) - 1
		node.actions[i] = node.actions[last]
		node.actions[last] = nil
		node.actions = node.actions[:last]
	}
	if len(node.actions) == 0 {
		delete(l.nodes, node.topic)
		l.engine.unfollow(node.topic)
	}
}

// unbuild forgets what an action has done.
func (l *layer) unbuild(a *action) {
	for _, node := range a.inputs {
		l.detach(a, node)
	}
	if a.failure != nil {
		l.engine.fails(-1)
		delete(l.failed, a)
	}
	a.inputs, a.failure, a.blob, a.built, a.stale, a.pending, a.scope = nil, nil, nil, false, false, false, input.MeshScope
}

// errNames marks a list of names that no xDS type may have.
var errNames = errors.New("invalid list of names")

// listNames runs a translator's Names or, for a host, HostNames; a panic is an error.
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

// buildResource runs a translator's Build and checks the message as Envoy will; a panic is an error. An *Incomplete comes with its message.
func buildResource(t Translator, r *input.Reader, name string) (m proto.Message, err error) {
	defer recovered(&err)
	m, err = t.Build(r, name)
	if _, lacking := errors.AsType[*Incomplete](err); err != nil && !lacking || m == nil {
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
