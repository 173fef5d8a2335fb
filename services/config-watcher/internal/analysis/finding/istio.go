package finding

// Reason says why a message of Istio has no code here.
type Reason struct{ Code, Name, Why string }

// Elsewhere lists the published messages of Istio that no code stands for.
func Elsewhere() []Reason {
	return []Reason{
		{"IST0136", "AlphaAnnotation", "`istioctl` does not tell it either: most annotations are alpha in name and in use everywhere."},
		{"IST0141", "InsufficientPermissions",
			"It is about an installation, not about objects: the API server names the permission that is missing."},
		{"IST0142", "UnsupportedKubernetesVersion", "It is about an installation, not about objects."},
		{"IST0143", "LocalhostListener",
			"It needs the sockets of each Pod, which `istioctl` reads from inside of it. A proxy of Fairlead reaches applications at localhost " +
				"too, unless the Pod turns interception off."},
		{"IST0156", "UnsupportedGatewayAPIVersion", "Istio no longer has it; `GatewayAPIOld` takes its place."},
		{"IST0166", "IneffectiveSelector", "Gateways of the Gateway API have no workloads here, so that no selector meets one."},
		{"IST0167", "IneffectivePolicy",
			"It is about waypoints of the ambient mode, which Fairlead does not have. `NamespaceWithoutProxies` is about sidecars."},
		{"IST0168", "UnknownUpgradeCompatibility", "It compares versions of Istio before an upgrade of its control plane."},
		{"IST0169", "UpdateIncompatibility", "It compares versions of Istio before an upgrade of its control plane."},
		{"IST0170", "MultiClusterInconsistentService", "An analysis reads one cluster."},
		{"IST0172", "FutureUnsupportedGatewayAPIVersion", "Istio no longer has it; `GatewayAPIOld` takes its place."},
		{"IST0175", "JwksUriFetchUnrestricted",
			"Addresses of the machine itself and of cloud metadata are never fetched, so that nothing is to be configured; see `JWKSTrap`."},
	}
}

// Retired are codes that Istio no longer uses.
var Retired = []string{"IST0104", "IST0105", "IST0113", "IST0114", "IST0115", "IST0117", "IST0119", "IST0120", "IST0121", "IST0122",
	"IST0124"}
