package envoyadmin

// Section is a part of the configuration, named as in Envoy's dump.
type Section string

// Sections that a Dump can show.
const (
	Clusters  Section = "ClustersConfigDump"
	Listeners Section = "ListenersConfigDump"
	Routes    Section = "RoutesConfigDump"
	Endpoints Section = "EndpointsConfigDump"
	Secrets   Section = "SecretsConfigDump"
	Bootstrap Section = "BootstrapConfigDump"
	// Extensions are the extension configs (ECDS).
	Extensions Section = "EcdsConfigDump"
	// VirtualHosts are shown from the section Routes.
	VirtualHosts Section = "VirtualHosts"
)
