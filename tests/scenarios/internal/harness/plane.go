package harness

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/internal/controlplane"
	"fairlead.dev/tests/internal/netns"
	"fairlead.dev/tests/internal/probe"
	"fairlead.dev/tests/scenarios/internal/format"
	"fairlead.dev/tests/scenarios/internal/store"
)

// xdsServers is how many there are.
const xdsServers = 2

// objectsGrace is how long objects stay in force whose file in objectsDir has gone; the least that there can be.
const objectsGrace = time.Second

// KeysInterval is how often keys of tokens are fetched; the least that there can be, for the Cache-Control of the key
// servers.
const KeysInterval = time.Second

// objectsDir has the files with objects that config-watcher reads besides: what is in them is not refused, as an API
// server's objects are not that no webhook has seen.
func (h *Harness) objectsDir() string { return h.path("objects") }

// plane is the control plane, on the hub.
type plane struct {
	*controlplane.Plane
	watcher *controlplane.Service
}

func (h *Harness) hubAddress(port int) string {
	return net.JoinHostPort(h.network.Hub.IP.String(), strconv.Itoa(port))
}

// portsOf are the ports of a service on the hub.
func (h *Harness) portsOf(account string, n int) controlplane.Ports {
	return controlplane.PortsOf(account, h.network.Hub.IP.String(), n)
}

// xdsAddresses are those of all xds-servers.
func (h *Harness) xdsAddresses() string {
	var all []string
	for i := range xdsServers {
		all = append(all, h.portsOf(contract.XDSServerAccount, i).GRPC)
	}
	return strings.Join(all, ",")
}

// startPlane starts the services and waits until config-watcher takes objects; the others it leaves to those that need
// them.
func (h *Harness) startPlane(ctx context.Context) error {
	all, err := controlplane.New(controlplane.Config{
		Dir: h.options.Dir, Binaries: h.files.Set, CAPorts: h.portsOf(contract.CAAccount, 0), Domain: h.mesh.trustDomain,
		Start: h.network.Hub.Start, Dial: dialFrom(h.network.Hub),
	})
	if err != nil {
		return err
	}
	p := &plane{Plane: all}
	h.plane = p
	source := []string{"--store-dir", h.path("store")}
	if h.options.API != nil {
		source = []string{"--kubernetes", "--kubeconfig", h.options.API.Kubeconfig, "--cluster-id", cluster}
	}
	if h.options.MultiTenant {
		source = append(source, "--multi-tenant")
	}
	if err := errors.Join(os.MkdirAll(h.objectsDir(), 0o755), os.WriteFile(h.path("issuers.pem"), h.issuer.CertPEM, 0o644)); err != nil {
		return err
	}
	source = append(source, "--config-dir", h.objectsDir(), "--file-grace-period", objectsGrace.String(),
		"--jwks-ca-file", h.path("issuers.pem"), "--jwks-min-interval", KeysInterval.String())
	at := h.portsOf(contract.ConfigWatcherAccount, 0)
	at.Ops = controlplane.PortsOf(contract.ConfigWatcherAccount, "127.0.0.1", 0).Ops // its pages for debugging need TLS elsewhere
	if p.watcher, err = p.ConfigWatcher(at, source...); err != nil {
		return err
	}
	for i := range xdsServers {
		if _, err := p.XDSServer(i, h.portsOf(contract.XDSServerAccount, i), p.watcher.GRPC); err != nil {
			return err
		}
	}
	if err := p.StartCA(ctx); err != nil {
		return err
	}
	for _, s := range p.Services[1:] {
		if err := s.Start(); err != nil {
			return err
		}
	}
	if err := p.WriteToken(h.path("token-admin"), 0, format.RootNamespace, contract.AdminAccount, contract.AdminAudience); err != nil {
		return err
	}
	if err := p.watcher.WaitReady(ctx); err != nil {
		return err
	}
	config := h.storeConfig(store.Watcher{
		GRPC: p.watcher.GRPC, Ops: p.watcher.Ops, ID: p.ID(contract.SystemNamespace, contract.ConfigWatcherAccount),
		RootFile: p.RootFile, TokenFile: h.path("token-admin"), Dial: dialFrom(h.network.Hub),
	})
	config.Translate = h.network.Translate
	h.store, err = store.New(config)
	return err
}

// storeConfig says how the objects of the fleet are written to a config-watcher.
func (h *Harness) storeConfig(at store.Watcher) store.Config {
	return store.Config{Watcher: at, API: h.options.API, IPv6: h.options.IPv6, Complete: h.complete, Log: h.log}
}

// dialFrom connects as a program on a machine.
func dialFrom(from *netns.Host) probe.Dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return from.Dial(ctx, network, address, "")
	}
}

// client makes HTTP requests as a program on a machine.
func client(from *netns.Host) *http.Client { return probe.Client(dialFrom(from)) }
