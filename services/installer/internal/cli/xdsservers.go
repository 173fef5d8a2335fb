package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"

	"fairlead.dev/services/installer/internal/controlplane"
	"fairlead.dev/services/installer/internal/opsclient"
	"fairlead.dev/services/installer/internal/proxyname"
)

// xdsServer is an xds-server's name and its operations port.
type xdsServer struct {
	name string
	ops  *opsclient.Client
}

// xdsServers lists the xds-servers that the flags name, otherwise those of the cluster or the run directory, with the
// one called named first.
func (t *target) xdsServers(ctx context.Context, named string) (servers []xdsServer, err error) {
	for _, address := range t.xdsAddresses {
		servers = append(servers, xdsServer{address, opsclient.New(address, t.tokenFile)})
	}
	if len(servers) > 0 && t.tokenFile != "" {
		return servers, nil
	}
	if len(servers) == 0 && t.address != "" {
		return nil, usage(errors.New("--config-watcher-address alone does not tell where the xds-servers are; add --xds-server-address"))
	}
	mesh, err := t.controlPlane(ctx)
	if err != nil {
		return nil, err
	}
	if mesh != nil {
		for _, r := range mesh.Of(controlplane.XDSServer) {
			servers = append(servers, xdsServer{r.Pod, r.Ops()})
		}
		return namedFirst(servers, named, "namespace "+mesh.Namespace)
	}
	state, err := t.state()
	if err != nil {
		return nil, err
	}
	tokenFile := cmp.Or(t.tokenFile, state.AdminTokenFile)
	if len(servers) > 0 {
		for _, s := range servers {
			s.ops.Token = opsclient.New(s.name, tokenFile).Token
		}
		return servers, nil
	}
	for _, s := range state.Services {
		if s.Program == "xds-server" {
			servers = append(servers, xdsServer{s.Name, opsclient.New(s.OpsAddress, tokenFile)})
		}
	}
	return namedFirst(servers, named, "run directory "+state.RunDir)
}

// namedFirst moves the server of a name to the front; none at all is an error.
func namedFirst(servers []xdsServer, named, where string) ([]xdsServer, error) {
	for i, s := range servers {
		if s.name == named {
			servers[0], servers[i] = servers[i], servers[0]
		}
	}
	if len(servers) == 0 {
		return nil, fmt.Errorf("%s has no xds-server", where)
	}
	return servers, nil
}

// connectedProxy is a proxy with the xds-servers that may know it, the one that it is connected to first.
type connectedProxy struct {
	nodeID  string
	servers []xdsServer
}

// findProxy finds a connected proxy by its name (package proxyname). config-watcher says which xds-server it is
// connected to. If the flags name xds-servers and no config-watcher, name must be whole, NAME.NAMESPACE or the node id,
// and ask tries each server.
func (t *target) findProxy(ctx context.Context, name, namespace string) (*connectedProxy, error) {
	if len(t.xdsAddresses) > 0 && t.address == "" {
		servers, err := t.xdsServers(ctx, "")
		return &connectedProxy{name, servers}, err
	}
	wanted, err := proxyname.Parse(name, namespace)
	if err != nil {
		return nil, usage(err)
	}
	res, err := t.listProxies(ctx, selection{namespace: namespace})
	if err != nil {
		return nil, err
	}
	p, err := matchOneProxy(res.GetProxies(), wanted)
	if err != nil {
		return nil, err
	}
	servers, err := t.xdsServers(ctx, serverName(p))
	return &connectedProxy{p.GetNodeId(), servers}, err
}

// serverName is the xds-server's process that a proxy is connected to: "xds-server-0" of "xds-server-0/7c1f".
func serverName(p *configv1.ProxyStatus) string {
	name, _, _ := strings.Cut(p.GetXdsServer(), "/")
	return name
}

// ask reads a page about the proxy from the first xds-server that knows it.
func (c *connectedProxy) ask(ctx context.Context, path string, query url.Values, out any) error {
	return c.askUntil(ctx, path, query, out, func() bool { return true })
}

// askUntil reads a page about the proxy from one xds-server that knows it after the other, until enough reports that
// out, which each answer replaces, is enough. A gRPC program has a stream for each target, and these may be spread over
// several xds-servers.
func (c *connectedProxy) askUntil(ctx context.Context, path string, query url.Values, out any, enough func() bool) error {
	query.Set("proxy", c.nodeID)
	var away []error
	known := false
	for _, s := range c.servers {
		err := s.ops.Get(ctx, path, query, out)
		no := new(opsclient.StatusError)
		switch {
		case err == nil:
			if known = true; enough() {
				return nil
			}
			continue
		case errors.As(err, &no) && no.Code == http.StatusUnauthorized, errors.As(err, &no) && no.Code == http.StatusForbidden:
			return fmt.Errorf("%s does not allow it: %w; use the token of the run directory, or name one of service account fairlead-admin with "+
				"--token-file",
				s.name, err)
		case errors.As(err, &no) && no.Code != http.StatusNotFound:
			return fmt.Errorf("%s: %w", s.name, err)
		}
		away = append(away, fmt.Errorf("%s: %w", s.name, err))
	}
	if known {
		return nil
	}
	return fmt.Errorf("no xds-server knows proxy %q:\n  %w", proxyName(c.nodeID), errors.Join(away...))
}
