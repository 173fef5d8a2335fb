package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/util/validation"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/nearest"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/config-watcher/internal/mcpserver"
)

// maxMCPCalls bounds the streams of one identity: a control plane has a few replicas, with one stream each.
const maxMCPCalls = 64

// checkMCP checks the flags of the MCP server, and returns who may call it.
func (c *config) checkMCP(errs *service.FlagErrors) (clients []spiffeid.ID, allow []netip.Prefix) {
	if c.MCPAddress == "" {
		for flag, given := range map[string]bool{
			"mcp-kinds": len(c.MCPKinds) > 0, "mcp-namespaces": len(c.MCPNamespaces) > 0, "mcp-clients": len(c.MCPClients) > 0,
			"mcp-allow-addresses": len(c.MCPAllow) > 0,
		} {
			if given {
				errs.Add(flag, errors.New("has no effect without --mcp-address"))
			}
		}
		return nil, nil
	}
	for _, name := range mcpserver.CheckKinds(c.MCPKinds) {
		errs.Add("mcp-kinds", fmt.Errorf("%q is no kind of Istio's%s", name, nearest.Hint(name, mcpserver.KindNames())))
	}
	for _, text := range c.MCPClients {
		namespace, account, ok := strings.Cut(text, "/")
		id, err := auth.WorkloadID(c.trustDomain, namespace, account)
		if !ok || err != nil {
			errs.Add("mcp-clients", fmt.Errorf("%q is not namespace/service-account", text))
			continue
		}
		clients = append(clients, id)
	}
	allow = prefixes(errs, "mcp-allow-addresses", c.MCPAllow)
	if len(c.MCPClients)+len(c.MCPAllow) == 0 {
		errs.Add("mcp-address", errors.New("needs --mcp-clients or --mcp-allow-addresses, or nobody could call"))
	}
	return clients, allow
}

// checkConfigSources checks the namespaces that config sources may fill, and returns those of each host:port.
func (o Options) checkConfigSources(errs *service.FlagErrors) map[string][]string {
	out := map[string][]string{}
	for _, text := range o.ConfigSourceNamespaces {
		host, namespace, _ := strings.Cut(text, "/")
		if _, port, err := net.SplitHostPort(host); err != nil || port == "" || len(validation.IsDNS1123Label(namespace)) > 0 {
			errs.Add("config-source-namespaces", fmt.Errorf("%q is not HOST:PORT/NAMESPACE", text))
			continue
		}
		out[host] = append(out[host], namespace)
	}
	return out
}

// mcpTable is what the MCP server serves; nil without --mcp-address.
func (s *Server) mcpTable(root func() string) *mcpserver.Table {
	if s.cfg.MCPAddress == "" {
		return nil
	}
	return mcpserver.NewTable(mcpserver.TableConfig{Kinds: s.cfg.MCPKinds, Namespaces: s.cfg.MCPNamespaces, Root: root, Log: s.Log})
}

// serveMCP opens the port of the MCP server, if there is one, and says who may call.
func (s *Server) serveMCP(ctx context.Context, identity tlsconf.Source, table *mcpserver.Table) error {
	if table == nil {
		return nil
	}
	lis, err := s.Listen(ctx, "mcp-address", s.cfg.MCPAddress)
	if err != nil {
		return err
	}
	rules := []auth.Rule{mcpserver.Rule()}
	for _, id := range s.cfg.mcpClients {
		rules = append(rules, auth.IDs(id.String()))
	}
	server, err := s.ServeGRPC("mcp", lis, rpc.ServerConfig{
		Service:             "config-watcher-mcp",
		TLS:                 tlsconf.ServerFrom(tls.VersionTLS12, identity, tls.VerifyClientCertIfGiven),
		Authenticator:       auth.FirstOf(auth.MTLSAt(s.Clock), mcpserver.ByAddress(s.cfg.trustDomain, s.cfg.mcpAllow)),
		Policy:              auth.Policy{"/" + discovery.AggregatedDiscoveryService_ServiceDesc.ServiceName + "/*": auth.Any(rules...)},
		MaxCallsPerIdentity: maxMCPCalls,
	}, grpc.ForceServerCodecV2(mcpserver.Codec()))
	if err != nil {
		return err
	}
	discovery.RegisterAggregatedDiscoveryServiceServer(server, mcpserver.NewServer(mcpserver.Config{
		Table: table, Stop: s.stop, Registerer: s.Registry, Log: s.Log, Clock: s.Clock,
		Ready: func() bool {
			snapshot, _ := s.revisions.Current()
			return snapshot != nil
		},
	}))
	return nil
}
