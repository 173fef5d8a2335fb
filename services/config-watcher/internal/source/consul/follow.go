package consul

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"

	"fairlead.dev/pkg/clock"
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

// errNotBuilt is the state of every registry of a config-watcher without a client for Consul.
var errNotBuilt = errors.New("this config-watcher is built without a client for Consul's catalog; use one of another version")

// Follow makes the Follower of a datacenter. It is the one place where package consul meets the client.
func Follow(Connection) Follower { return absent{} }

// errUndeclared is why a registry of the last run is not read.
var errUndeclared = errors.New("no declaration of the registry has been read since the start")

// undeclared follows nothing, for a registry whose saved state is served until its declaration is read.
type undeclared struct{ absent }

// Status implements Follower.
func (undeclared) Status() Following { return Following{Degraded: errUndeclared} }

// absent reads nothing.
type absent struct{}

// Run implements Follower.
func (absent) Run(ctx context.Context, _ Handler) error {
	<-ctx.Done()
	return nil
}

// Reconnect implements Follower.
func (absent) Reconnect(Connection) {}

// Status implements Follower.
func (absent) Status() Following { return Following{Degraded: errNotBuilt} }
