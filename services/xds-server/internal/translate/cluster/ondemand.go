package cluster

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"

	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/discovery"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	"fairlead.dev/services/xds-server/internal/translate/serviceaddress"
	"fairlead.dev/services/xds-server/internal/translate/sidecarscope"
)

// onDemand builds the cluster of connections to an address: that of the service there, whose endpoints and statistics it shares, or what the
// policy for unknown destinations says. There always is one, so that a service which appears, goes or comes back is an update.
func onDemand(r *input.Reader, name string, o resourcename.OnDemandCluster) (*clusterv3.Cluster, error) {
	if m, ok := servicePortOf(r, o); ok {
		c := resourcename.Cluster{Direction: resourcename.DirectionOutbound, Port: m.Port.GetNumber(), Hostname: m.Service.GetHostname()}
		if resolved, ok := discovery.Resolve(r, c); ok {
			if resolved.Kind == discovery.DynamicHosts {
				// Nothing on the way here has looked the name up but the client.
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

// renamed builds a cluster that counts as the one it stands for.
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

// behind finds the service port that a connection is for: by its address or a network around it, by the server name it asks for, or else the
// one that has the port on all addresses.
func servicePortOf(r *input.Reader, o resourcename.OnDemandCluster) (serviceaddress.ServicePort, bool) {
	place := serviceaddress.At(r, o.Address, o.Port)
	if m := place.Opaque(); m != nil {
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
	place = serviceaddress.TCPAtWildcard(r, o.Port)
	if place.TCP == nil {
		return serviceaddress.ServicePort{}, false
	}
	return *place.TCP, true
}
