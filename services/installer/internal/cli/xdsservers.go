package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"

	"fairlead.dev/services/installer/internal/opsclient"
	"fairlead.dev/services/installer/internal/proxyname"
)

// xdsServer is an xds-server's name and the address of its operations port.
type xdsServer struct{ name, address string }

// xdsServers lists the xds-servers that the flags name, otherwise those of the run directory, with the one called named
// first. tokenFile authenticates to them.
func (t *target) xdsServers(named string) (servers []xdsServer, tokenFile string, err error) {
	for _, address := range t.xdsAddresses {
		servers = append(servers, xdsServer{address, address})
	}
	if len(servers) > 0 && t.tokenFile != "" {
		return servers, t.tokenFile, nil
	}
	if len(servers) == 0 && t.address != "" {
		return nil, "", usage(errors.New("--config-watcher-address alone does not tell where the xds-servers are; add --xds-server-address"))
	}
	state, err := t.state()
	if err != nil {
		return nil, "", err
	}
	tokenFile = t.tokenFile
	orDefault(&tokenFile, state.AdminTokenFile)
	if len(servers) > 0 {
		return servers, tokenFile, nil
	}
	for _, s := range state.Services {
		if s.Program == "xds-server" {
			servers = append(servers, xdsServer{s.Name, s.OpsAddress})
		}
	}
	for i, s := range servers {
		if s.name == named {
			servers[0], servers[i] = servers[i], servers[0]
		}
	}
	if len(servers) == 0 {
		return nil, "", fmt.Errorf("run directory %s names no xds-server", state.RunDir)
	}
	return servers, tokenFile, nil
}

// connectedProxy is a proxy with the xds-servers that may know it, the one that it is connected to first.
type connectedProxy struct {
	nodeID    string
	servers   []xdsServer
	tokenFile string
}

// findProxy finds a connected proxy by its name (package proxyname). config-watcher says which xds-server it is
// connected to. If the flags name xds-servers and no config-watcher, name must be whole, NAME.NAMESPACE or the node id,
// and ask tries each server.
func (t *target) findProxy(ctx context.Context, name, namespace string) (*connectedProxy, error) {
	if len(t.xdsAddresses) > 0 && t.address == "" {
		servers, tokenFile, err := t.xdsServers("")
		return &connectedProxy{name, servers, tokenFile}, err
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
	servers, tokenFile, err := t.xdsServers(serverName(p))
	return &connectedProxy{p.GetNodeId(), servers, tokenFile}, err
}

// serverName is the xds-server's process that a proxy is connected to: "xds-server-0" of "xds-server-0/7c1f".
func serverName(p *configv1.ProxyStatus) string {
	name, _, _ := strings.Cut(p.GetXdsServer(), "/")
	return name
}

// ask reads a page about the proxy from the first xds-server that knows it.
func (c *connectedProxy) ask(ctx context.Context, path string, query url.Values, out any) error {
	query.Set("proxy", c.nodeID)
	var away []error
	for _, s := range c.servers {
		err := opsclient.Get(ctx, s.address, c.tokenFile, path, query, out)
		no := new(opsclient.StatusError)
		switch {
		case err == nil:
			return nil
		case errors.As(err, &no) && no.Code == http.StatusUnauthorized, errors.As(err, &no) && no.Code == http.StatusForbidden:
			return fmt.Errorf("%s does not allow it: %w; use the token of the run directory, or name one of service account fairlead-admin with --token-file",
				s.name, err)
		case errors.As(err, &no) && no.Code != http.StatusNotFound:
			return fmt.Errorf("%s: %w", s.name, err)
		}
		away = append(away, fmt.Errorf("%s: %w", s.name, err))
	}
	return fmt.Errorf("no xds-server knows proxy %q:\n  %w", proxyName(c.nodeID), errors.Join(away...))
}
