package cluster

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"

	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/discovery"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	"fairlead.dev/services/xds-server/internal/translate/serviceaddress"
	"fairlead.dev/services/xds-server/internal/translate/sidecarscope"
)

// onDemand builds the cluster that an on-demand sidecar requests for connections to an address: that of the service
// there, with the same endpoints and statistics, or else the cluster for unknown destinations. The result is never nil,
// so a service that appears, goes or comes back updates the cluster.
func onDemand(r *input.Reader, name string, o resourcename.OnDemandCluster) (*clusterv3.Cluster, error) {
	if m, ok := servicePortOf(r, o); ok {
		c := resourcename.Cluster{Direction: resourcename.DirectionOutbound, Port: m.Port.GetNumber(), Hostname: m.Service.GetHostname()}
		if resolved, ok := discovery.Resolve(r, c); ok {
			if resolved.Kind == discovery.DynamicHosts {
				// The proxy has not resolved the name: only the client has.
				resolved.Kind = discovery.OriginalDestination
			}
			return renamed(name, c.String(), func() (*clusterv3.Cluster, error) { return outbound(r, resolved) })
		}
	}
	unknown := sidecarscope.UnknownDestinationCluster(r)
	if c, ok := resourcename.ParseCluster(unknown); ok {
		if resolved, ok := discovery.Resolve(r, c); ok {
			return renamed(name, unknown, func() (*clusterv3.Cluster, error) { return outbound(r, resolved) })
		}
	}
	if unknown != resourcename.PassthroughCluster {
		unknown = resourcename.BlackHoleCluster
	}
	return renamed(name, unknown, func() (*clusterv3.Cluster, error) { return builtinCluster(r, unknown) })
}

// renamed builds a cluster under another name. Its statistics keep the name of the cluster that it stands for.
func renamed(name, stat string, build func() (*clusterv3.Cluster, error)) (*clusterv3.Cluster, error) {
	out, err := build()
	if err != nil {
		return nil, err
	}
	out.Name = name
	if out.GetAltStatName() == "" {
		out.AltStatName = stat
	}
	return out, nil
}

// servicePortOf returns the service port of a connection: by address, by CIDR range, by SNI, or else the one that
// receives all other connections to the port.
func servicePortOf(r *input.Reader, o resourcename.OnDemandCluster) (serviceaddress.ServicePort, bool) {
	found := serviceaddress.At(r, o.Address, o.Port)
	if m := found.Opaque(); m != nil {
		return *m, true
	}
	if m, ok := serviceaddress.ByCIDR(r, o.Address, o.Port, o.ServerName); ok {
		return m, true
	}
	if o.ServerName != "" {
		if m, ok := serviceaddress.BySNI(r, o.ServerName, o.Port); ok {
			return m, true
		}
	}
	found = serviceaddress.TCPAtWildcard(r, o.Port)
	if found.TCP == nil {
		return serviceaddress.ServicePort{}, false
	}
	return *found.TCP, true
}
