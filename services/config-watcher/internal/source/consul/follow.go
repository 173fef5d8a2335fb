package consul

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/services/config-watcher/internal/source/consul/catalog"
	"fairlead.dev/services/config-watcher/internal/source/consul/registry"
)

// Connection is what a datacenter is read with.
type Connection struct {
	// Address is the URL of the HTTP API, without a path.
	Address, Datacenter, Token string
	// TLS is nil for plaintext.
	TLS         *tls.Config
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
	// Filter reports whether a service is wanted. It may be called from any goroutine.
	Filter func(service string) bool
	// Known is what has been told already, by service: nothing of it is removed before a reading lacks it for certain.
	Known map[string][]registry.Instance
	Log   *slog.Logger
	Clock clock.Clock
}

// Handler is told what is read, by one goroutine at a time. It changes nothing of it.
type Handler interface {
	// Names are those of the wanted services that exist, after a complete and trustworthy reading: what is not among
	// them is gone.
	Names(names []string)
	// Service are all instances of one service, at least one and sorted by node and id, after such a reading. It is not
	// called again for the same ones.
	Service(name string, instances []registry.Instance)
	// Whole follows as soon as what has been told is one state of the catalog, also if nothing had to be told. certain
	// is true if nothing may be hidden.
	Whole(certain bool)
}

// Follower follows the catalog of one datacenter.
type Follower interface {
	// Run reads until ctx ends. It tries again after errors and does not return for them.
	Run(ctx context.Context, to Handler) error
	// Reconnect goes on with another connection; what has been told stays told.
	Reconnect(Connection)
	// Refresh reads the names and some services again; Whole is called after that and not before.
	Refresh(services ...string)
	Status() Following
}

// Following is how a Follower does.
type Following struct {
	// Synced is true after the names and all services have been read once.
	Synced bool
	// Degraded is why the catalog, or a part of it, cannot be read now; nil if it can.
	Degraded error
	// Limited says why not all services are watched at once; "" if they are.
	Limited string
	// Watches are the services that are watched, Polled those that are read in turn. Requests counts all that were
	// made.
	Watches, Polled int
	Requests        uint64
}

// Follow makes the Follower of a datacenter. It is the one place where package consul meets the client.
func Follow(c Connection) Follower { return following{catalog.New(configOf(c))} }

func configOf(c Connection) catalog.Config {
	return catalog.Config{Address: c.Address, Datacenter: c.Datacenter, Token: func() string { return c.Token }, DialContext: c.DialContext,
		TLS: c.TLS, Filter: c.Filter, Known: c.Known, Log: c.Log, Clock: c.Clock}
}

// following is a Catalog.
type following struct{ *catalog.Catalog }

// Run implements Follower.
func (f following) Run(ctx context.Context, to Handler) error { return f.Catalog.Run(ctx, aside{to}) }

// aside calls a Handler on a stack that ends with the call.
type aside struct{ Handler }

// Service implements Handler.
func (a aside) Service(name string, instances []registry.Instance) {
	_ = catalog.Aside(func() error { // returns none
		a.Handler.Service(name, instances)
		return nil
	})
}

// Reconnect implements Follower. The declaration has been judged, so its address is one.
func (f following) Reconnect(c Connection) {
	if err := f.Catalog.Reconnect(configOf(c)); err != nil {
		c.Log.Error("registry goes on with its former connection", "error", err)
	}
}

// Status implements Follower.
func (f following) Status() Following {
	st := f.Catalog.Status()
	out := Following{Synced: st.Synced, Degraded: st.Degraded, Watches: st.Watches, Polled: st.Polled, Requests: st.Requests}
	if st.State == catalog.Limited {
		out.Degraded, out.Limited = nil, st.Degraded.Error()
	}
	return out
}

// errUndeclared is why a registry of the last run is not read.
var errUndeclared = errors.New("no declaration of the registry has been read since the start")

// undeclared follows nothing, for a registry whose saved state is served until its declaration is read.
type undeclared struct{}

// Run implements Follower.
func (undeclared) Run(ctx context.Context, _ Handler) error {
	<-ctx.Done()
	return nil
}

// Reconnect implements Follower.
func (undeclared) Reconnect(Connection) {}

// Refresh implements Follower.
func (undeclared) Refresh(...string) {}

// Status implements Follower.
func (undeclared) Status() Following { return Following{Degraded: errUndeclared} }
