package meshclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"fairlead.dev/pkg/process"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/controlplane"
	"fairlead.dev/services/installer/internal/opsclient"
	"fairlead.dev/services/installer/internal/proxyname"
)

// Server is a service that runs.
type Server struct {
	// Name is that of its process or Pod, the latter with the namespace if that is not the control plane's.
	Name string
	// Ops is a client of its operations port.
	Ops *opsclient.Client
	// process is the name without a namespace, as proxies' statuses have it.
	process string
}

// Servers lists the services of a program that run in the cluster or on the run directory; where names the place.
func (m *Mesh) Servers(ctx context.Context, program string) (list []Server, where string, err error) {
	found, err := m.ControlPlane(ctx)
	if err != nil {
		return nil, "", err
	}
	if found != nil {
		for _, r := range found.Of(program) {
			list = append(list, Server{r.Name(), r.Ops(), r.Pod})
		}
		return list, "namespace " + found.Namespace, nil
	}
	state, err := m.State()
	if err != nil {
		return nil, "", err
	}
	for _, s := range state.Services {
		if s.Program == program {
			list = append(list, Server{s.Name, opsclient.New(s.OpsAddress, cmp.Or(m.TokenFile, state.AdminTokenFile)), s.Name})
		}
	}
	return list, "run directory " + state.RunDir, nil
}

// at lists services by the addresses of their operations ports.
func (m *Mesh) at(addresses []string) (servers []Server, err error) {
	tokenFile := m.TokenFile
	if tokenFile == "" {
		state, err := m.State()
		if err != nil {
			return nil, err
		}
		tokenFile = state.AdminTokenFile
	}
	for _, address := range addresses {
		servers = append(servers, Server{address, opsclient.New(address, tokenFile), address})
	}
	return servers, nil
}

// xdsServers lists the xds-servers of the addresses, otherwise those of the cluster or the run directory, with the one
// called named first.
func (m *Mesh) xdsServers(ctx context.Context, named string) (servers []Server, err error) {
	if len(m.XDSAddresses) > 0 {
		return m.at(m.XDSAddresses)
	}
	if m.Address != "" {
		return nil, process.Usage(errors.New("--config-watcher-address alone does not tell where the xds-servers are; add --xds-server-address"))
	}
	servers, where, err := m.Servers(ctx, controlplane.XDSServer)
	if err == nil && len(servers) == 0 {
		err = fmt.Errorf("%s has no xds-server", where)
	}
	for i, s := range servers {
		if s.process == named {
			servers[0], servers[i] = servers[i], servers[0]
		}
	}
	return servers, err
}

// Proxy is a connected proxy with the xds-servers that may know it, the one that it is connected to first.
type Proxy struct {
	NodeID  string
	servers []Server
}

// Name is "<pod>.<namespace>".
func (p *Proxy) Name() string { return ProxyName(p.NodeID) }

// Proxy finds a connected proxy by its name (package proxyname). config-watcher says which xds-server it is connected
// to. If the addresses name xds-servers and no config-watcher, name must be whole, NAME.NAMESPACE or the node id, and
// Ask tries each server.
func (m *Mesh) Proxy(ctx context.Context, name, namespace string) (*Proxy, error) {
	if m.WithoutConfigWatcher() {
		servers, err := m.xdsServers(ctx, "")
		return &Proxy{name, servers}, err
	}
	wanted, err := proxyname.Parse(name, namespace)
	if err != nil {
		return nil, process.Usage(err)
	}
	res, err := m.Fleet(ctx, Selection{Namespace: namespace})
	if err != nil {
		return nil, err
	}
	p, err := MatchOneProxy(res.GetProxies(), wanted)
	if err != nil {
		return nil, err
	}
	return m.ProxyOf(ctx, p)
}

// WithoutConfigWatcher reports whether the addresses name xds-servers and no config-watcher.
func (m *Mesh) WithoutConfigWatcher() bool { return len(m.XDSAddresses) > 0 && m.Address == "" }

// ProxyOf is the proxy of a status.
func (m *Mesh) ProxyOf(ctx context.Context, p *configv1.ProxyStatus) (*Proxy, error) {
	servers, err := m.xdsServers(ctx, ServerName(p))
	return &Proxy{p.GetNodeId(), servers}, err
}

// Ask reads a page about the proxy from the first xds-server that knows it.
func (p *Proxy) Ask(ctx context.Context, path string, query url.Values, out any) error {
	return p.AskUntil(ctx, path, query, out, func() bool { return true })
}

// AskUntil reads a page about the proxy from one xds-server that knows it after the other, until enough reports that
// out, which each answer replaces, is enough. A gRPC program has a stream for each target, and these may be spread over
// several xds-servers.
func (p *Proxy) AskUntil(ctx context.Context, path string, query url.Values, out any, enough func() bool) error {
	query.Set("proxy", p.NodeID)
	var away []error
	known := false
	for _, s := range p.servers {
		err := s.Ops.Get(ctx, path, query, out)
		if err == nil {
			if known = true; enough() {
				return nil
			}
			continue
		}
		if err := s.final(err); err != nil {
			return err
		}
		away = append(away, fmt.Errorf("%s: %w", s.process, err))
	}
	if known {
		return nil
	}
	return fmt.Errorf("no xds-server knows proxy %q:\n  %w", p.Name(), errors.Join(away...))
}

// AskMesh reads a page about the mesh, which each xds-server answers alike, from the first one that does. A page that
// an xds-server answers with 404 has the answer's error: no other one has it.
func (m *Mesh) AskMesh(ctx context.Context, path string, query url.Values, out any) error {
	servers, err := m.xdsServers(ctx, "")
	if err != nil {
		return err
	}
	var away []error
	for _, s := range servers {
		err := s.Ops.Get(ctx, path, query, out)
		if err == nil {
			return nil
		}
		if err := s.final(err); err != nil {
			return err
		}
		if no := new(opsclient.StatusError); errors.As(err, &no) {
			return fmt.Errorf("%s: %w", s.process, err)
		}
		away = append(away, fmt.Errorf("%s: %w", s.process, err))
	}
	return fmt.Errorf("no xds-server answers:\n  %w", errors.Join(away...))
}

// final returns the error to end with if asking another xds-server is of no use; nil if this one does not know, or
// cannot be reached.
func (s Server) final(err error) error {
	no := new(opsclient.StatusError)
	if !errors.As(err, &no) {
		return nil
	}
	switch no.Code {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%s does not allow it: %w; use the token of the run directory, or name one of service account fairlead-admin with "+
			"--token-file", s.process, err)
	case http.StatusNotFound:
		return nil
	default:
		return fmt.Errorf("%s: %w", s.process, err)
	}
}
