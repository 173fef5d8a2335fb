package cluster

import (
	"strconv"
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/discovery"
	"fairlead.dev/services/xds-server/internal/translate/inbound"
)

// outboundAltStatName returns the name of a cluster's statistics by MeshConfig.outboundClusterStatName; "" keeps the
// cluster's name.
func outboundAltStatName(r *input.Reader, c discovery.Cluster) string {
	return altStatName(r.Mesh().GetOutboundClusterStatName(), c.Service, c.Port, "%SUBSET_NAME%", c.Subset)
}

// inboundAltStatName is the same for a port of the workload, by MeshConfig.inboundClusterStatName. A port without a
// service keeps the cluster's name.
func inboundAltStatName(r *input.Reader, port inbound.Port) string {
	if port.Service == nil {
		return ""
	}
	return altStatName(r.Mesh().GetInboundClusterStatName(), port.Service, port.ServicePort, "%TARGET_PORT%", strconv.Itoa(int(port.Number)))
}

func altStatName(pattern string, svc *configv1.Service, port uint32, variable, value string) string {
	if !strings.Contains(pattern, "%") {
		return pattern
	}
	short := svc.GetHostname()
	if own := svc.GetName() + "." + svc.GetNamespace(); strings.HasPrefix(short, own+".svc.") {
		short = own
	}
	portName := ""
	for _, p := range svc.GetPorts() {
		if p.GetNumber() == port {
			portName = p.GetName()
			break
		}
	}
	return strings.NewReplacer(
		"%SERVICE%", short,
		"%SERVICE_NAME%", svc.GetName(),
		"%SERVICE_FQDN%", svc.GetHostname(),
		"%SERVICE_PORT%", strconv.Itoa(int(port)),
		"%SERVICE_PORT_NAME%", portName,
		variable, value,
	).Replace(pattern)
}
