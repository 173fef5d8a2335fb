package plan

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/replica"
	"fairlead.dev/services/xds-server/internal/store"
)

// action is one memoised step of a class: the list of names of a type, or one resource.
type action struct {
	plan *typePlan
	// name of the resource; "" for the list of names.
	name string
	// inputs that the last run read.
	inputs []*topicNode
	blob   *store.Blob
	// failure of the last run; the result before it stays.
	failure error
	// wildcard is true while the name is in the wildcard set, refs counts the streams that ask for the name.
	wildcard bool
	refs     int
}

// topicNode is a recorded dependency and the actions that have it.
type topicNode struct {
	topic   replica.Topic
	actions []*action
}

// attach replaces the action's inputs. A run that failed may have stopped before it read all it needs, so the inputs of the one before it
// stay too.
func (c *Class) attach(a *action, topics replica.Topics, failure error) {
	if failure != nil {
		for _, node := range a.inputs {
			topics.Add(node.topic)
		}
	}
	inputs := make([]*topicNode, 0, len(topics))
	for topic := range topics {
		node, ok := c.nodes[topic]
		if !ok {
			node = &topicNode{topic: topic}
			c.nodes[topic] = node
		}
		inputs = append(inputs, node)
		if !slices.Contains(a.inputs, node) {
			node.actions = append(node.actions, a)
		}
	}
	for _, node := range a.inputs {
		if !topics.Has(node.topic) {
			c.detach(a, node)
		}
	}
	a.inputs = inputs
}

func (c *Class) detach(a *action, node *topicNode) {
	if i := slices.Index(node.actions, a); i >= 0 {
		last := len(node.actions) - 1
		node.actions[i] = node.actions[last]
		node.actions[last] = nil
		node.actions = node.actions[:last]
	}
	if len(node.actions) == 0 {
		delete(c.nodes, node.topic)
	}
}

// forget takes the action out of the plan.
func (c *Class) forget(a *action) {
	for _, node := range a.inputs {
		c.detach(a, node)
	}
	a.inputs = nil
	if a.failure != nil {
		c.failures--
		c.engine.metrics.failing.Dec()
	}
	delete(a.plan.actions, a.name)
}

// errNames marks a wildcard list that no xDS type may have.
var errNames = errors.New("invalid list of names")

// listNames runs a translator's Names; a panic is an error.
func listNames(t Translator, r *input.Reader) (names []string, err error) {
	defer recovered(&err)
	names, err = t.Names(r)
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

// buildResource runs a translator's Build and checks the message as Envoy will; a panic is an error.
func buildResource(t Translator, r *input.Reader, name string) (m proto.Message, err error) {
	defer recovered(&err)
	m, err = t.Build(r, name)
	if err != nil || m == nil {
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
	return m, nil
}

func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("translator panicked: %v\n%s", p, debug.Stack())
	}
}
