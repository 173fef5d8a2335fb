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

// Translator makes the resources of one xDS type. Its methods are pure: the same answers of the Reader give the same
// result. The engine calls them concurrently, for different classes and for different names of one class. It also calls
// them with the keys of a namespace and of the mesh (class.Key.OfNamespace, class.Key.OfMesh): a result for which only
// Reader.Class and questions with one answer for every namespace were read is used for all classes.
type Translator interface {
	// TypeURL of the resources.
	TypeURL() string
	// Traits of the type. A translator that wraps another one returns the traits of the wrapped one.
	Traits() Traits
	// Names lists, sorted, the names that a wildcard subscription receives whichever services exist. It must not depend
	// on the list of all services; HostNames lists what each service adds.
	Names(r *input.Reader) ([]string, error)
	// HostNames lists, sorted, the names that a wildcard subscription receives because of one host: the name of a
	// service, a host that only VirtualServices have, or for a router one of a route of the Gateway API. Several hosts
	// may list the same resource. It lists none for a host that the class does not reach (Reader.Reaches), for the
	// engine does not ask then.
	HostNames(r *input.Reader, host string) ([]string, error)
	// Build makes one resource. It returns nil, nil if the class has no resource of that name. The message must not be
	// changed afterwards. A message that comes with an *Incomplete is used, and the error is reported.
	Build(r *input.Reader, name string) (proto.Message, error)
}

// Traits tell the engine how to plan the resources of a type. The zero value is right for most types.
type Traits struct {
	// AlwaysListed makes Class.Plan build everything that HostNames lists, also for a subscription by name. It suits a
	// type whose listed names proxies subscribe to anyway: they are built once, in the scope plan that classes share.
	AlwaysListed bool
	// DropUnused makes Class.Release drop a resource as soon as no stream subscribes to it. Resources of other types
	// stay built for the linger time.
	DropUnused bool
}

// Incomplete is the error of a resource that was built without a part of its configuration, an EnvoyFilter for example.
type Incomplete struct{ Err error }

func (e *Incomplete) Error() string { return e.Err.Error() }

// Unwrap returns the error that names the missing part.
func (e *Incomplete) Unwrap() error { return e.Err }

// Unenforced is the error of a resource that does not do what policies say: its last good version stays, or it lets
// nothing pass.
type Unenforced struct{ Err error }

func (e *Unenforced) Error() string { return e.Err.Error() }

// Unwrap returns the error that names the policy, or what the proxy lacks.
func (e *Unenforced) Unwrap() error { return e.Err }

// ErrPending is the error of Build while an input that it has read has not arrived yet, such as a credential. The proxy
// waits for the resource; the engine does not report a failure.
var ErrPending = errors.New("an input has yet to come")

// List lists the whole wildcard set of a class from scratch. Tests compare plans with it.
func List(t Translator, key *class.Key, state *mesh.Snapshot) ([]string, error) {
	all, err := listNames(t, input.NewView(key, state).Reader(), "")
	if err != nil {
		return nil, err
	}
	view := input.NewView(key, state)
	list := func(host string) {
		names, e := listNames(t, view.Reader(), host)
		all, err = append(all, names...), errors.Join(err, e)
	}
	state.Hosts(contract.MeshGateway, list)
	if key.Type == class.Router {
		state.RoutedHosts(list)
	}
	slices.Sort(all)
	return slices.Compact(all), err
}
