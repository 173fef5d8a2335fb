// Package plan says which resources each class of proxies has, and keeps them built: every resource is a pure function of what its
// translator has read, so it is built again only when one of those answers has changed, and sent again only when its bytes have.
package plan

import (
	"errors"
	"slices"

	"google.golang.org/protobuf/proto"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// Translator makes the resources of one xDS type. Its methods are pure: the same answers of the Reader give the same result. They are
// called concurrently for different classes, and for keys that stand for what many classes have in common (class.Key.Shared): a result
// that was made from nothing but Reader.Class and questions with one answer for everybody serves all of them.
type Translator interface {
	// TypeURL of the resources.
	TypeURL() string
	// Names lists, sorted, what a wildcard subscription of the class receives whatever services there are. It may not depend on the
	// list of all services: what one service adds is up to HostNames.
	Names(r *input.Reader) ([]string, error)
	// HostNames lists what a wildcard subscription receives because of one host: the name of a service, or a name that only
	// VirtualServices have. Several hosts may list the same resource.
	HostNames(r *input.Reader, host string) ([]string, error)
	// Build makes one resource. It returns nil, nil where the class has no resource of that name; the message must not be changed later.
	// A result together with an *Incomplete is used, and the error reported.
	Build(r *input.Reader, name string) (proto.Message, error)
}

// Incomplete is the error of a resource that was built without some of what was asked for.
type Incomplete struct{ Err error }

func (e *Incomplete) Error() string { return e.Err.Error() }

// Unwrap returns what is lacking and why.
func (e *Incomplete) Unwrap() error { return e.Err }

// ErrPending is Build's error while an input has yet to come that was asked for by reading it. Who asked for the resource is kept waiting;
// it is no failure.
var ErrPending = errors.New("an input has yet to come")

// Fleeting is a Translator whose resources are forgotten as soon as nobody asks for them.
type Fleeting interface {
	Translator
	// Fleeting does nothing.
	Fleeting()
}

// List lists the whole wildcard set of a class at a state, from scratch.
func List(t Translator, key *class.Key, state *mesh.Snapshot) ([]string, error) {
	all, err := listNames(t, input.NewView(key, state).Reader(), "")
	if err != nil {
		return nil, err
	}
	view := input.NewView(key, state)
	state.Hosts(contract.MeshGateway, func(host string) {
		names, e := listNames(t, view.Reader(), host)
		all, err = append(all, names...), errors.Join(err, e)
	})
	slices.Sort(all)
	return slices.Compact(all), err
}

// Ahead is a Translator of a type that proxies ask for by name. What HostNames lists is known to be asked for, and is built and kept for
// all classes together rather than for each proxy that asks.
type Ahead interface {
	Translator
	// Ahead does nothing; it says that HostNames is meant so.
	Ahead()
}
