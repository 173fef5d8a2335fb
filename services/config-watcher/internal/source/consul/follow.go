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
	// Service are all instances of one service, after such a reading. It is not called again for the same ones.
	Service(name string, instances []registry.Instance)
}

// Follower follows the catalog of one datacenter.
type Follower interface {
	// Run reads until ctx ends. It tries again after errors and does not return for them.
	Run(ctx context.Context, to Handler) error
	// Reconnect goes on with another connection; what has been told stays told.
	Reconnect(Connection)
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
	if st.State == catalog.Limited {
		return Following{Synced: st.Synced, Limited: st.Degraded.Error()}
	}
	return Following{Synced: st.Synced, Degraded: st.Degraded}
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

// Status implements Follower.
func (undeclared) Status() Following { return Following{Degraded: errUndeclared} }
