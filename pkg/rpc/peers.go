package rpc

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc"

	"fairlead.dev/pkg/lists"
)

const (
	// lookupTimeout bounds the lookup of the peers' names.
	lookupTimeout = time.Second
	// maxPeers bounds how many addresses are dialled.
	maxPeers = 128
)

// Resolver looks up host names; net.Resolver implements it.
type Resolver interface {
	LookupHost(ctx context.Context, host string) ([]string, error)
}

// PeersConfig says who the other replicas of a service are. Resolver and Log are required, and TLS or Insecure.
type PeersConfig struct {
	// Peers are host:port; a name stands for all of its addresses, as that of a headless Service does.
	Peers        []string
	TLS          *tls.Config
	Insecure     bool
	MaxRecvBytes int
	Resolver     Resolver
	Log          *slog.Logger
}

// Peers keeps connections to the replicas of a service. It is for one goroutine.
type Peers struct {
	cfg PeersConfig
	// found is what names last resolved to, by host:port as configured.
	found map[string][]string
	// conns are kept, by address.
	conns map[string]*grpc.ClientConn
}

// NewPeers returns peers without a connection.
func NewPeers(cfg PeersConfig) *Peers {
	return &Peers{cfg: cfg, found: map[string][]string{}, conns: map[string]*grpc.ClientConn{}}
}

// Conns looks the names up again and returns a connection to each address. The caller must not keep or close them.
func (p *Peers) Conns(ctx context.Context) map[string]*grpc.ClientConn {
	p.connect(p.addresses(ctx))
	return p.conns
}

// Close closes all connections.
func (p *Peers) Close() { p.connect(nil) }

// addresses resolves the names again. A name that does not resolve stands for its last addresses.
func (p *Peers) addresses(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	var all []string
	for _, hostport := range p.cfg.Peers {
		host, port, err := net.SplitHostPort(hostport)
		if err != nil || net.ParseIP(host) != nil {
			all = append(all, hostport)
			continue
		}
		hosts, err := p.cfg.Resolver.LookupHost(ctx, host)
		if err == nil {
			p.found[hostport] = lists.Map(hosts, func(h string) string { return net.JoinHostPort(h, port) })
		} else {
			p.cfg.Log.Debug("replicas not found", "name", host, "error", err)
		}
		all = append(all, p.found[hostport]...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	return all[:min(len(all), maxPeers)]
}

// connect opens and closes connections until conns has exactly these addresses.
func (p *Peers) connect(addresses []string) {
	for address, conn := range p.conns {
		if !slices.Contains(addresses, address) {
			_ = conn.Close() // the replica is gone
			delete(p.conns, address)
		}
	}
	for _, address := range addresses {
		if p.conns[address] != nil {
			continue
		}
		conn, err := Dial(ClientConfig{Target: address, TLS: p.cfg.TLS, Insecure: p.cfg.Insecure, MaxRecvBytes: p.cfg.MaxRecvBytes})
		if err != nil {
			p.cfg.Log.Debug("no connection to a replica", "address", address, "error", err)
			continue
		}
		p.conns[address] = conn
	}
}
