// Package calls makes the calls of scenarios on a running fleet and compares what comes of them.
package calls

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"fairlead.dev/tests/internal/netns"
	"fairlead.dev/tests/scenarios/internal/caller"
	"fairlead.dev/tests/scenarios/internal/echo"
	"fairlead.dev/tests/scenarios/internal/expect"
	"fairlead.dev/tests/scenarios/internal/format"
	"fairlead.dev/tests/scenarios/internal/wire"
)

// Fleet is what runs, as far as calls need it.
type Fleet interface {
	Workloads() []*format.Workload
	// Host is the machine of a workload, or the one outside; nil if there is none.
	Host(name string) *netns.Host
	// Journal is the socket of a workload's application, AccessLog the file of its proxy's log.
	Journal(name string) string
	AccessLog(name string) string
	Identity(name string) (string, error)
	// NameServer is IP:port; Search are a workload's search domains.
	NameServer() string
	Search(name string) []string
	Roots() *x509.CertPool
}

// device is a machine's way to the others.
const device = "eth0"

// Calls makes calls. It is safe for concurrent use.
type Calls struct {
	fleet    Fleet
	specs    map[string]*format.Workload
	servers  map[string]*expect.Server
	sniffers []*wire.Sniffer

	mu    sync.Mutex
	added map[netip.Addr]string
}

// New begins to look at every machine's device. It must come before the calls and may come before the applications.
func New(f Fleet) (*Calls, error) {
	c := &Calls{fleet: f, specs: map[string]*format.Workload{}, servers: map[string]*expect.Server{}, added: map[netip.Addr]string{}}
	for _, spec := range f.Workloads() {
		c.specs[spec.Name] = spec
		if spec.Kind == format.Gateway {
			continue // nobody's application
		}
		identity, err := f.Identity(spec.Name)
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		host := f.Host(spec.Name)
		sniffer, err := wire.Open(host.In, device)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", spec.Name, err), c.Close())
		}
		c.sniffers = append(c.sniffers, sniffer)
		server := &expect.Server{
			Identity: identity, HasProxy: spec.HasProxy(), IPs: addresses(host), Journal: echo.NewJournal(f.Journal(spec.Name)), Sniffer: sniffer,
		}
		if server.HasProxy {
			server.Log = wire.AccessLog{Path: f.AccessLog(spec.Name)}
		}
		c.servers[spec.Name] = server
	}
	return c, nil
}

// Close stops looking.
func (c *Calls) Close() error {
	var failed []error
	for _, s := range c.sniffers {
		failed = append(failed, s.Close())
	}
	return errors.Join(failed...)
}

func addresses(h *netns.Host) []netip.Addr {
	all := []netip.Addr{h.IP}
	if h.IP6.IsValid() {
		all = append(all, h.IP6)
	}
	return all
}

// Call implements runner.Caller.
func (c *Calls) Call(ctx context.Context, call *format.Call, certificates map[string]*format.Material) error {
	of, scene, err := c.prepare(call, certificates)
	if err != nil {
		return err
	}
	scene.Begin()
	return scene.Check(ctx, of.Run(ctx, call))
}

// Begin implements runner.Caller.
func (c *Calls) Begin(ctx context.Context, call *format.Call, certificates map[string]*format.Material) (end func() error, err error) {
	endless := *call
	endless.Count = 0
	of, scene, err := c.prepare(&endless, certificates)
	if err != nil {
		return nil, err
	}
	scene.Begin()
	background := of.Begin(ctx, &endless)
	return func() error { return scene.Check(ctx, background.End()) }, nil
}

// prepare finds out who calls, and what to compare with.
func (c *Calls) prepare(call *format.Call, certificates map[string]*format.Material) (*caller.Caller, *expect.Scene, error) {
	host := c.fleet.Host(call.From)
	if host == nil {
		return nil, nil, fmt.Errorf("there is no machine %q to call from", call.From)
	}
	if err := c.source(call, host); err != nil {
		return nil, nil, err
	}
	of := &caller.Caller{
		From:  caller.Machine{Host: host, Resolver: c.fleet.NameServer(), Search: c.fleet.Search(call.From)},
		Roots: c.fleet.Roots(), Certificates: certificates,
	}
	scene := &expect.Scene{Call: call, From: addresses(host), Servers: c.servers}
	if call.Via != "" {
		spec, via := c.specs[call.Via], c.fleet.Host(call.Via)
		if spec == nil || via == nil {
			return nil, nil, fmt.Errorf("there is no workload %q to call", call.Via)
		}
		of.Via = &caller.Via{IPs: addresses(via), Ports: map[int]int{}}
		for _, p := range spec.Ports {
			of.Via.Ports[p.Port] = p.TargetPort
		}
		if spec.Kind == format.Gateway {
			scene.From = addresses(via)
		}
	}
	if ip, err := netip.ParseAddr(call.SourceIP); err == nil {
		scene.From = append(scene.From, ip)
	}
	return of, scene, nil
}

// source gives the caller's machine the address that a call comes from, and lets the other machines find it there.
func (c *Calls) source(call *format.Call, host *netns.Host) error {
	if call.SourceIP == "" {
		return nil
	}
	ip, err := netip.ParseAddr(call.SourceIP)
	if err != nil {
		return fmt.Errorf("sourceIP: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch owner := c.added[ip]; {
	case owner == call.From, ip == host.IP, ip == host.IP6:
		return nil
	case owner != "":
		return fmt.Errorf("sourceIP: %s is an address of %s already", ip, owner)
	}
	if err := host.AddAddress(ip); err != nil {
		return fmt.Errorf("sourceIP: %w", err)
	}
	c.added[ip] = call.From
	for name := range c.specs {
		if other := c.fleet.Host(name); other != host {
			if err := other.Run("", "ip", "route", "replace", netip.PrefixFrom(ip, ip.BitLen()).String(), "dev", device); err != nil {
				return fmt.Errorf("sourceIP: %w", err)
			}
		}
	}
	return nil
}
